/* openapi.h - docs/openapi.json, embedded when the program is built. */
#ifndef HUTCH_FRONT_OPENAPI_H
#define HUTCH_FRONT_OPENAPI_H

extern const char openapi_json[];
extern const unsigned long openapi_json_size;

#endif
