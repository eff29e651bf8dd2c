/* native.h - our own API below /v1: what E2B's has no word for. See docs/api.md. */
#ifndef HUTCH_FRONT_NATIVE_H
#define HUTCH_FRONT_NATIVE_H

#include "front/api.h"

api_fn native_openapi, native_capabilities, native_node, native_events;
api_fn native_tenants, native_tenant_put, native_tenant_remove;
api_fn native_keys, native_key_create, native_key_remove;
api_fn native_stop_all;

#endif
