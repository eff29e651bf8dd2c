/* absent.c - operations of Daytona's generated clients that a node does not have. Each answers 501 and names itself, so that no
 * client takes it for a wrong address. The list is that of daytona-api-client 0.231 and daytona-toolbox-api-client 0.226.
 */
#include "api/daytona/daytona.h"
#include "base/cleanup.h"

static void daytona_absent(struct api_call *c)
{
    daytona_error(c->req, 501, NULL, "%s %s is not offered by this node (docs/daytona.md lists what is)",
                  c->route->method, c->route->pattern);
}

#define ABSENT(method, path)                          \
    {                                                 \
        method, "/daytona" path, daytona_absent, 0, 0 \
    }
#define NO_TOOL(method, path)                                      \
    {                                                              \
        method, "/daytona/toolbox/{id}" path, daytona_absent, 0, 0 \
    }

static const struct api_route routes[] = {
    ABSENT("GET", "/api-keys"),                             /* list_api_keys */
    ABSENT("POST", "/api-keys"),                            /* create_api_key */
    ABSENT("GET", "/api-keys/current"),                     /* get_current_api_key */
    ABSENT("DELETE", "/api-keys/{name}"),                   /* delete_api_key */
    ABSENT("GET", "/api-keys/{name}"),                      /* get_api_key */
    ABSENT("DELETE", "/api-keys/{userId}/{name}"),          /* delete_api_key_for_user */
    ABSENT("GET", "/audit/organizations/{organizationId}"), /* get_organization_audit_logs */
    ABSENT("GET", "/audit/scenarios"),                      /* get_audit_scenarios */
    ABSENT("GET", "/docker-registry"),                      /* list_registries */
    ABSENT("POST", "/docker-registry"),                     /* create_registry */
    ABSENT("GET", "/docker-registry/registry-push-access"), /* get_transient_push_access */
    ABSENT("DELETE", "/docker-registry/{id}"),              /* delete_registry */
    ABSENT("GET", "/docker-registry/{id}"),                 /* get_registry */
    ABSENT("PATCH", "/docker-registry/{id}"),               /* update_registry */
    ABSENT("GET", "/health/ready"),                         /* health_controller_check */
    ABSENT("GET", "/jobs"),                                 /* list_jobs */
    ABSENT("GET", "/jobs/poll"),                            /* poll_jobs */
    ABSENT("GET", "/jobs/{jobId}"),                         /* get_job */
    ABSENT("POST", "/jobs/{jobId}/status"),                 /* update_job_status */
    ABSENT("GET", "/object-storage/push-access"),           /* get_push_access */
    ABSENT("GET", "/organizations"),                        /* list_organizations */
    ABSENT("POST", "/organizations"),                       /* create_organization */
    ABSENT("GET", "/organizations/invitations"),            /* list_organization_invitations_for_authenticated_user */
    ABSENT("GET", "/organizations/invitations/count"), /* get_organization_invitations_count_for_authenticated_user */
    ABSENT("POST", "/organizations/invitations/{invitationId}/accept"),  /* accept_organization_invitation */
    ABSENT("POST", "/organizations/invitations/{invitationId}/decline"), /* decline_organization_invitation */
    ABSENT("GET", "/organizations/otel-config/by-sandbox-auth-token/{authToken}"),
    ABSENT(
        "GET",
        "/organizations/sandbox-identity/by-sandbox-auth-token/{authToken}"), /* get_sandbox_identity_by_sandbox_auth_token */
    ABSENT("DELETE", "/organizations/{organizationId}"),                      /* delete_organization */
    ABSENT("GET", "/organizations/{organizationId}"),                         /* get_organization */
    ABSENT("GET", "/organizations/{organizationId}/available-sandbox-classes"), /* list_available_sandbox_classes */
    ABSENT("PATCH",
           "/organizations/{organizationId}/default-queue-timeout"),   /* update_organization_default_queue_timeout */
    ABSENT("PATCH", "/organizations/{organizationId}/default-region"), /* set_organization_default_region */
    ABSENT("PUT", "/organizations/{organizationId}/experimental-config"), /* update_experimental_config */
    ABSENT("GET", "/organizations/{organizationId}/gpu-capacity"),        /* get_gpu_capacity */
    ABSENT("GET", "/organizations/{organizationId}/identity-providers"),  /* list_organization_identity_providers */
    ABSENT("POST", "/organizations/{organizationId}/identity-providers"), /* create_organization_identity_provider */
    ABSENT("POST", "/organizations/{organizationId}/identity-providers/test-connection"),
    ABSENT(
        "POST",
        "/organizations/{organizationId}/identity-providers/workos-admin-portal-link"), /* generate_workos_admin_portal_link */
    ABSENT(
        "GET",
        "/organizations/{organizationId}/identity-providers/workos-sso-connections"), /* list_workos_sso_connections */
    ABSENT("DELETE",
           "/organizations/{organizationId}/identity-providers/{id}"), /* delete_organization_identity_provider */
    ABSENT("GET", "/organizations/{organizationId}/identity-providers/{id}"), /* get_organization_identity_provider */
    ABSENT("PATCH",
           "/organizations/{organizationId}/identity-providers/{id}"), /* update_organization_identity_provider */
    ABSENT("GET", "/organizations/{organizationId}/invitations"),      /* list_organization_invitations */
    ABSENT("POST", "/organizations/{organizationId}/invitations"),     /* create_organization_invitation */
    ABSENT("PUT", "/organizations/{organizationId}/invitations/{invitationId}"), /* update_organization_invitation */
    ABSENT("POST",
           "/organizations/{organizationId}/invitations/{invitationId}/cancel"), /* cancel_organization_invitation */
    ABSENT("POST", "/organizations/{organizationId}/leave"),                     /* leave_organization */
    ABSENT("DELETE", "/organizations/{organizationId}/otel-config"),             /* delete_organization_otel_config */
    ABSENT("GET", "/organizations/{organizationId}/otel-config"),                /* get_organization_otel_config */
    ABSENT("PUT", "/organizations/{organizationId}/otel-config"),                /* update_organization_otel_config */
    ABSENT("GET", "/organizations/{organizationId}/roles"),                      /* list_organization_roles */
    ABSENT("POST", "/organizations/{organizationId}/roles"),                     /* create_organization_role */
    ABSENT("DELETE", "/organizations/{organizationId}/roles/{roleId}"),          /* delete_organization_role */
    ABSENT("PUT", "/organizations/{organizationId}/roles/{roleId}"),             /* update_organization_role */
    ABSENT("GET", "/organizations/{organizationId}/usage"),                      /* get_organization_usage_overview */
    ABSENT("GET", "/organizations/{organizationId}/users"),                      /* list_organization_members */
    ABSENT("DELETE", "/organizations/{organizationId}/users/{userId}"),          /* delete_organization_member */
    ABSENT("POST", "/organizations/{organizationId}/users/{userId}/access"), /* update_access_for_organization_member */
    ABSENT("GET", "/preview/{sandboxId}/access"),                            /* has_sandbox_access */
    ABSENT("GET", "/preview/{sandboxId}/preview-warning"),                   /* is_preview_warning_enabled */
    ABSENT("GET", "/preview/{sandboxId}/public"),                            /* is_sandbox_public */
    ABSENT("GET", "/preview/{sandboxId}/signing-key"),                       /* get_signing_key */
    ABSENT("GET", "/preview/{sandboxId}/validate/{authToken}"),              /* is_valid_auth_token */
    ABSENT("GET", "/preview/{signedPreviewToken}/{port}/sandbox-id"), /* get_sandbox_id_from_signed_preview_url_token */
    ABSENT("GET", "/regions"),                                        /* list_available_regions */
    ABSENT("POST", "/regions"),                                       /* create_region */
    ABSENT("DELETE", "/regions/{id}"),                                /* delete_region */
    ABSENT("GET", "/regions/{id}"),                                   /* get_region_by_id */
    ABSENT("PATCH", "/regions/{id}"),                                 /* update_region */
    ABSENT("POST", "/regions/{id}/regenerate-proxy-api-key"),         /* regenerate_proxy_api_key */
    ABSENT("POST",
           "/regions/{id}/regenerate-snapshot-manager-credentials"), /* regenerate_snapshot_manager_credentials */
    ABSENT("POST", "/regions/{id}/regenerate-ssh-gateway-api-key"),  /* regenerate_ssh_gateway_api_key */
    ABSENT("GET", "/runners"),                                       /* list_runners */
    ABSENT("POST", "/runners"),                                      /* create_runner */
    ABSENT("GET", "/runners/by-sandbox/{sandboxId}"),                /* get_runner_by_sandbox_id */
    ABSENT("GET", "/runners/by-snapshot-ref"),                       /* get_runners_by_snapshot_ref */
    ABSENT("POST", "/runners/healthcheck"),                          /* runner_healthcheck */
    ABSENT("GET", "/runners/me"),                                    /* get_info_for_authenticated_runner */
    ABSENT("GET", "/runners/me/snapshots"),                          /* get_snapshot_refs_for_authenticated_runner */
    ABSENT("DELETE", "/runners/{id}"),                               /* delete_runner */
    ABSENT("GET", "/runners/{id}"),                                  /* get_runner_by_id */
    ABSENT("PATCH", "/runners/{id}/draining"),                       /* update_runner_draining */
    ABSENT("GET", "/runners/{id}/full"),                             /* get_runner_full_by_id */
    ABSENT("PATCH", "/runners/{id}/scheduling"),                     /* update_runner_scheduling */
    ABSENT("GET", "/sandbox/for-runner"),                            /* get_sandboxes_for_runner */
    ABSENT("GET", "/sandbox/ssh-access/validate"),                   /* validate_ssh_access */
    ABSENT("POST", "/sandbox/{sandboxIdOrName}/archive"),            /* archive_sandbox */
    ABSENT("POST", "/sandbox/{sandboxIdOrName}/autoarchive/{interval}"), /* set_auto_archive_interval */
    ABSENT("POST", "/sandbox/{sandboxIdOrName}/backup"),                 /* create_backup */
    ABSENT("GET", "/sandbox/{sandboxIdOrName}/build-logs"),              /* get_build_logs */
    ABSENT("GET", "/sandbox/{sandboxIdOrName}/build-logs-url"),          /* get_build_logs_url */
    ABSENT(
        "POST",
        "/sandbox/{sandboxIdOrName}/ports/{port}/signed-preview-url/{token}/expire"), /* expire_signed_port_preview_url */
    ABSENT("POST", "/sandbox/{sandboxIdOrName}/recover"),                             /* recover_sandbox */
    ABSENT("POST", "/sandbox/{sandboxIdOrName}/resize"),                              /* resize_sandbox */
    ABSENT("PUT", "/sandbox/{sandboxIdOrName}/secrets"),                              /* update_sandbox_secrets */
    ABSENT("DELETE", "/sandbox/{sandboxIdOrName}/ssh-access"),                        /* revoke_ssh_access */
    ABSENT("POST", "/sandbox/{sandboxIdOrName}/ssh-access"),                          /* create_ssh_access */
    ABSENT("POST", "/sandbox/{sandboxIdOrName}/ttl/{ttlMinutes}"),                    /* set_ttl */
    ABSENT("GET", "/sandbox/{sandboxId}/organization"),               /* get_organization_by_sandbox_id */
    ABSENT("GET", "/sandbox/{sandboxId}/region-quota"),               /* get_region_quota_by_sandbox_id */
    ABSENT("GET", "/sandbox/{sandboxId}/secrets"),                    /* resolve_sandbox_secrets */
    ABSENT("GET", "/sandbox/{sandboxId}/signing-key"),                /* get_sandbox_signing_key */
    ABSENT("POST", "/sandbox/{sandboxId}/signing-key/rotate"),        /* rotate_signing_key */
    ABSENT("PUT", "/sandbox/{sandboxId}/state"),                      /* update_sandbox_state */
    ABSENT("GET", "/sandbox/{sandboxId}/telemetry/logs"),             /* get_sandbox_logs */
    ABSENT("GET", "/sandbox/{sandboxId}/telemetry/metrics"),          /* get_sandbox_metrics */
    ABSENT("GET", "/sandbox/{sandboxId}/telemetry/traces"),           /* get_sandbox_traces */
    ABSENT("GET", "/sandbox/{sandboxId}/telemetry/traces/{traceId}"), /* get_sandbox_trace_spans */
    ABSENT("GET", "/secret"),                                         /* list_secrets */
    ABSENT("POST", "/secret"),                                        /* create_secret */
    ABSENT("GET", "/secret/paginated"),                               /* list_secrets_paginated */
    ABSENT("DELETE", "/secret/{secretId}"),                           /* delete_secret */
    ABSENT("GET", "/secret/{secretId}"),                              /* get_secret */
    ABSENT("PATCH", "/secret/{secretId}"),                            /* update_secret */
    ABSENT("GET", "/shared-regions"),                                 /* list_shared_regions */
    ABSENT("POST", "/snapshots"),                                     /* create_snapshot */
    ABSENT("POST", "/snapshots/{id}/activate"),                       /* activate_snapshot */
    ABSENT("GET", "/snapshots/{id}/build-logs"),                      /* get_snapshot_build_logs */
    ABSENT("GET", "/snapshots/{id}/build-logs-url"),                  /* get_snapshot_build_logs_url */
    ABSENT("POST", "/snapshots/{id}/deactivate"),                     /* deactivate_snapshot */
    ABSENT("GET", "/users/account-providers"),                        /* get_account_providers */
    ABSENT("POST", "/users/linked-accounts"),                         /* link_account */
    ABSENT("GET", "/users/me"),                                       /* get_authenticated_user */
    ABSENT("POST", "/users/me/logins"),                               /* record_login */
    ABSENT("GET", "/users/me/pending-sso-links"),                     /* list_pending_sso_links */
    ABSENT("DELETE", "/users/me/pending-sso-links/{id}"),             /* dismiss_pending_sso_link */
    ABSENT("POST", "/users/me/pending-sso-links/{id}/confirm"),       /* confirm_pending_sso_link */
    ABSENT("POST", "/users/privacy-policies/accept"),                 /* accept_privacy_policies */
    ABSENT("GET", "/warm-pools"),                                     /* list_warm_pools */
    ABSENT("POST", "/warm-pools"),                                    /* create_warm_pool */
    ABSENT("DELETE", "/warm-pools/{id}"),                             /* delete_warm_pool */
    ABSENT("PATCH", "/warm-pools/{id}"),                              /* update_warm_pool */
    ABSENT("POST",
           "/webhooks/organizations/{organizationId}/app-portal-access"), /* webhook_controller_get_app_portal_access */
    ABSENT(
        "GET",
        "/webhooks/organizations/{organizationId}/initialization-status"), /* webhook_controller_get_initialization_status */
    ABSENT("POST", "/webhooks/organizations/{organizationId}/initialize"), /* webhook_controller_initialize_webhooks */
    ABSENT("POST",
           "/webhooks/organizations/{organizationId}/refresh-endpoints"), /* webhook_controller_refresh_endpoints */
    NO_TOOL("POST", "/computeruse/a11y/find"),                            /* find_accessibility_nodes */
    NO_TOOL("POST", "/computeruse/a11y/node/focus"),                      /* focus_accessibility_node */
    NO_TOOL("POST", "/computeruse/a11y/node/invoke"),                     /* invoke_accessibility_node */
    NO_TOOL("POST", "/computeruse/a11y/node/value"),                      /* set_accessibility_node_value */
    NO_TOOL("GET", "/computeruse/a11y/tree"),                             /* get_accessibility_tree */
    NO_TOOL("GET", "/computeruse/display/info"),                          /* get_display_info */
    NO_TOOL("GET", "/computeruse/display/windows"),                       /* get_windows */
    NO_TOOL("POST", "/computeruse/keyboard/down"),                        /* key_down */
    NO_TOOL("POST", "/computeruse/keyboard/hotkey"),                      /* press_hotkey */
    NO_TOOL("POST", "/computeruse/keyboard/key"),                         /* press_key */
    NO_TOOL("POST", "/computeruse/keyboard/type"),                        /* type_text */
    NO_TOOL("POST", "/computeruse/keyboard/up"),                          /* key_up */
    NO_TOOL("POST", "/computeruse/mouse/click"),                          /* click */
    NO_TOOL("POST", "/computeruse/mouse/down"),                           /* mouse_down */
    NO_TOOL("POST", "/computeruse/mouse/drag"),                           /* drag */
    NO_TOOL("POST", "/computeruse/mouse/move"),                           /* move_mouse */
    NO_TOOL("GET", "/computeruse/mouse/position"),                        /* get_mouse_position */
    NO_TOOL("POST", "/computeruse/mouse/scroll"),                         /* scroll */
    NO_TOOL("POST", "/computeruse/mouse/up"),                             /* mouse_up */
    NO_TOOL("GET", "/computeruse/process-status"),                        /* get_computer_use_status */
    NO_TOOL("GET", "/computeruse/process/{processName}/errors"),          /* get_process_errors */
    NO_TOOL("GET", "/computeruse/process/{processName}/logs"),            /* get_process_logs */
    NO_TOOL("POST", "/computeruse/process/{processName}/restart"),        /* restart_process */
    NO_TOOL("GET", "/computeruse/process/{processName}/status"),          /* get_process_status */
    NO_TOOL("GET", "/computeruse/recordings"),                            /* list_recordings */
    NO_TOOL("POST", "/computeruse/recordings/start"),                     /* start_recording */
    NO_TOOL("POST", "/computeruse/recordings/stop"),                      /* stop_recording */
    NO_TOOL("DELETE", "/computeruse/recordings/{id}"),                    /* delete_recording */
    NO_TOOL("GET", "/computeruse/recordings/{id}"),                       /* get_recording */
    NO_TOOL("GET", "/computeruse/recordings/{id}/download"),              /* download_recording */
    NO_TOOL("GET", "/computeruse/screenshot"),                            /* take_screenshot */
    NO_TOOL("GET", "/computeruse/screenshot/compressed"),                 /* take_compressed_screenshot */
    NO_TOOL("GET", "/computeruse/screenshot/region"),                     /* take_region_screenshot */
    NO_TOOL("GET", "/computeruse/screenshot/region/compressed"),          /* take_compressed_region_screenshot */
    NO_TOOL("POST", "/computeruse/start"),                                /* start_computer_use */
    NO_TOOL("GET", "/computeruse/status"),                                /* get_computer_use_system_status */
    NO_TOOL("POST", "/computeruse/stop"),                                 /* stop_computer_use */
    NO_TOOL("POST", "/env"),                                              /* update_env */
    NO_TOOL("POST", "/files/upload-v2"),                                  /* upload_file */
    NO_TOOL("GET", "/git/config"),                                        /* get_git_config */
    NO_TOOL("POST", "/git/config"),                                       /* set_git_config */
    NO_TOOL("POST", "/git/config/user"),                                  /* configure_user */
    NO_TOOL("POST", "/git/credentials"),                                  /* authenticate */
    NO_TOOL("GET", "/git/remotes"),                                       /* list_remotes */
    NO_TOOL("POST", "/git/remotes"),                                      /* add_remote */
    NO_TOOL("POST", "/git/reset"),                                        /* reset_changes */
    NO_TOOL("POST", "/git/restore"),                                      /* restore_files */
    NO_TOOL("POST", "/init"),                                             /* initialize */
    NO_TOOL("POST", "/lsp/completions"),                                  /* completions */
    NO_TOOL("POST", "/lsp/did-close"),                                    /* did_close */
    NO_TOOL("POST", "/lsp/did-open"),                                     /* did_open */
    NO_TOOL("GET", "/lsp/document-symbols"),                              /* document_symbols */
    NO_TOOL("POST", "/lsp/start"),                                        /* start */
    NO_TOOL("POST", "/lsp/stop"),                                         /* stop */
    NO_TOOL("GET", "/lsp/workspacesymbols"),                              /* workspace_symbols */
    NO_TOOL("GET", "/port"),                                              /* get_ports */
    NO_TOOL("GET", "/port/{port}/in-use"),                                /* is_port_in_use */
    NO_TOOL("GET", "/process/interpreter/context"),                       /* list_interpreter_contexts */
    NO_TOOL("POST", "/process/interpreter/context"),                      /* create_interpreter_context */
    NO_TOOL("DELETE", "/process/interpreter/context/{id}"),               /* delete_interpreter_context */
    NO_TOOL("GET", "/process/interpreter/execute"),                       /* execute_interpreter_code */
    NO_TOOL("GET", "/process/session/entrypoint"),                        /* get_entrypoint_session */
    NO_TOOL("GET", "/process/session/entrypoint/logs"),                   /* get_entrypoint_logs */
    NO_TOOL("GET", "/system/metrics"),                                    /* get_system_metrics */
};
const struct api_dialect daytona_absent_dialect = {.routes = routes, .nroutes = ARRAY_LEN(routes)};
