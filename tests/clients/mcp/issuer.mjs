// issuer.mjs - an OAuth issuer on 127.0.0.1 (npm oidc-provider) with new keys at each start: issuer.mjs PORT AUDIENCE. Clients are named
// ALG.TENANT, e.g. "RS256.default"; "-" as tenant leaves the claim out. The secret is "secret".
import { exportJWK, generateKeyPair } from "jose";
import Provider from "oidc-provider";

const [port, audience] = process.argv.slice(2);
const algs = ["RS256", "ES256", "EdDSA", "PS256"];
const keys = [];
for (const alg of algs) {
  const { privateKey } = await generateKeyPair(alg, { extractable: true });
  keys.push({ ...(await exportJWK(privateKey)), use: "sig", alg });
}
const tenants = ["default", "other", "none-such", "-"];
const provider = new Provider(`http://127.0.0.1:${port}`, {
  jwks: { keys },
  scopes: ["hutch:sandboxes", "hutch:read", "hutch:files", "mail"],
  clients: algs.flatMap((alg) => tenants.map((t) => ({
    client_id: `${alg}.${t}`, client_secret: "secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [],
  }))),
  extraTokenClaims: (_ctx, token) => {
    const tenant = token.clientId.split(".")[1];
    return tenant === "-" ? {} : { hutch_tenant: tenant };
  },
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => audience,
      getResourceServerInfo: (_ctx, resource, client) => ({
        scope: "hutch:sandboxes hutch:read hutch:files mail", audience: resource, accessTokenFormat: "jwt",
        jwt: { sign: { alg: client.clientId.split(".")[0] } },
      }),
    },
  },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
