#include "bpf-interp.h"

#include <string.h>

static bool jump(uint16_t code, uint32_t a, uint32_t k, bool *ret)
{
    switch (BPF_OP(code)) {
    case BPF_JEQ:
        *ret = a == k;
        return true;
    case BPF_JGE:
        *ret = a >= k;
        return true;
    case BPF_JGT:
        *ret = a > k;
        return true;
    case BPF_JSET:
        *ret = (a & k) != 0;
        return true;
    default:
        return false;
    }
}

static bool load(const struct seccomp_data *d, uint32_t k, uint32_t *ret, struct bpf_trace *t)
{
    if (k % 4 || k + 4 > sizeof *d)
        return false;
    memcpy(ret, (const unsigned char *)d + k, 4);
    t->loaded_arg = t->loaded_arg || k >= offsetof(struct seccomp_data, instruction_pointer);
    return true;
}

static void cover(struct bpf_trace *t, size_t pc, uint8_t bits)
{
    if (t->cover)
        t->cover[pc] = (uint8_t)(t->cover[pc] | bits);
}

uint32_t bpf_run(const struct sock_filter *v, size_t n, const struct seccomp_data *d, struct bpf_trace *t)
{
    uint32_t a = 0, x = 0;
    bool yes = false;
    for (size_t pc = 0; pc < n; pc++) {
        t->steps++;
        cover(t, pc, BPF_SEEN);
        switch (v[pc].code) {
        case BPF_LD | BPF_W | BPF_ABS:
            if (!load(d, v[pc].k, &a, t))
                return BPF_BAD;
            break;
        case BPF_ALU | BPF_AND | BPF_K:
            a &= v[pc].k;
            break;
        case BPF_ALU | BPF_XOR | BPF_K:
            a ^= v[pc].k;
            break;
        case BPF_ALU | BPF_OR | BPF_X:
            a |= x;
            break;
        case BPF_MISC | BPF_TAX:
            x = a;
            break;
        case BPF_RET | BPF_K:
            return v[pc].k;
        case BPF_JMP | BPF_JA:
            pc += v[pc].k;
            break;
        default:
            if (BPF_CLASS(v[pc].code) != BPF_JMP || BPF_SRC(v[pc].code) != BPF_K || !jump(v[pc].code, a, v[pc].k, &yes))
                return BPF_BAD;
            cover(t, pc, yes ? BPF_TAKEN : BPF_MISSED);
            pc += yes ? v[pc].jt : v[pc].jf;
        }
    }
    return BPF_BAD; /* ran off the end */
}

size_t bpf_uncovered(const struct sock_filter *v, size_t n, const uint8_t *seen, size_t *first)
{
    size_t missing = 0;
    for (size_t i = n; i-- > 0;) {
        bool branch = BPF_CLASS(v[i].code) == BPF_JMP && BPF_OP(v[i].code) != BPF_JA;
        uint8_t want = branch ? BPF_SEEN | BPF_TAKEN | BPF_MISSED : BPF_SEEN;
        if ((seen[i] & want) != want) {
            missing++;
            *first = i;
        }
    }
    return missing;
}
