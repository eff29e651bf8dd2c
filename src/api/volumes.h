/* volumes.h - what the dialects answer alike about volumes. */
#ifndef HUTCH_API_VOLUMES_H
#define HUTCH_API_VOLUMES_H

#include "api/api.h"

/* Answers 404 for the volume that parameter 0 names. */
void api_no_volume(struct api_call *c);
/* The route that removes the volume that parameter 0 names. */
api_fn api_volume_remove;

#endif
