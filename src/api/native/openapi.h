/* openapi.h - the text of docs/openapi.json, embedded by the build for GET /v1/openapi.json. */
#ifndef HUTCH_API_NATIVE_OPENAPI_H
#define HUTCH_API_NATIVE_OPENAPI_H

extern const char openapi_json[];
extern const unsigned long openapi_json_size;

#endif
