/* bpf-interp.h - runs classic BPF as seccomp does, and remembers where it has been.
 *
 * Only the instructions that our compiler and libseccomp emit. A program that would not pass the kernel's verifier
 * (jump out of bounds, unknown instruction, odd or foreign load) gives BPF_BAD.
 */
#ifndef HUTCH_TESTS_BPF_INTERP_H
#define HUTCH_TESTS_BPF_INTERP_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BPF_BAD 0xdeadU /* no SECCOMP_RET_ value */

enum { BPF_SEEN = 1, BPF_TAKEN = 2, BPF_MISSED = 4 };

struct bpf_trace {
    uint8_t *cover;  /* one byte of BPF_SEEN, BPF_TAKEN, BPF_MISSED per instruction; may be NULL */
    bool loaded_arg; /* anything but number and architecture was looked at */
    unsigned steps;
};

uint32_t bpf_run(const struct sock_filter *v, size_t n, const struct seccomp_data *d, struct bpf_trace *t);
/* The number of instructions never reached plus branches never taken one of their ways, and the first such index. */
size_t bpf_uncovered(const struct sock_filter *v, size_t n, const uint8_t *cover, size_t *first);

#endif
