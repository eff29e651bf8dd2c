/* text.h - text for people: the nearest known word, and untrusted bytes made safe to print. Never fails. */
#ifndef HUTCH_BASE_TEXT_H
#define HUTCH_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* The entry of `known` (NULL-terminated) closest to `word`, or NULL if none is close enough to be a plausible typo. */
const char *text_nearest(const char *word, const char *const *known);
/* Appends "a, b or c". */
void text_add_choices(struct buf *b, const char *const *words);
/* Appends `s` with control characters, ESC and invalid UTF-8 escaped (\n, \x1b), cut at `max` bytes with "...". */
void text_add_safe(struct buf *b, const char *s, size_t max);

/* "EPERM" for EPERM: the errors that a filter, a mount or a limit answers with. Others are "?". Static. */
const char *text_errno(int eno);
/* "KILL" for SIGKILL; NULL for real-time signals and what is none. Static. */
const char *text_signal(int sig);
/* Whether a word of n bytes stands in a list "WORD,WORD,..." (NULL: an empty one), in either case of letters. */
bool text_listed(const char *list, const char *word, size_t n);

#endif
