/* image.h - the image worker: reads what strangers wrote (archives, image manifests, compressed data, a registry's answers)
 * and turns it into lay streams. A process of its own, `hutch-node image WHAT`, started by a job of stock as an
 * ordinary user, without capabilities, with its own system call filter, an empty directory as its root and (all but
 * fetch) no network; it can do nothing but read its input and write its outputs. What it says is checked by the job as
 * if an attacker had said it.
 *
 * Descriptors: 3 input, 4 output, 5 control (SEQPACKET, to the job), 6 scratch, 7 the directory that becomes its root (with
 * CAP_SYS_CHROOT, which is given up then; without it, Landlock alone). Everything that goes wrong is one IMAGE_FAILED
 * on control, with a sentence for the user, and exit code 1. The messages are in stock/worker.h.
 *
 *   unpack   3: an archive as `docker save`, `skopeo copy oci-archive:` or a tar of an OCI layout directory make it,
 * any of them plain, gzip, bzip2, xz or zstd; must be
 *            seekable, and if it is compressed 6 must be an empty file for the unpacked one. --image NAME: which of
 * several; --hutch: it must be one of our exports, whole.
 *            Layers are written to 4 one after another, each a whole lay stream, bottom layer first. Before each
 * IMAGE_LAYER with the diff_id that the configuration
 *            promises; the job answers IMAGE_GO. The last record
 *            of a stream is written when diff_id and digest were found to be true. After the last layer IMAGE_CONFIG,
 * then IMAGE_DONE with a note in text.
 *   layer    3: one tar, plain, gzip, bzip2, xz or zstd. One lay stream to 4, then IMAGE_DONE. Whiteouts are ordinary
 * names unless --oci; --hutch: pack wrote it.
 *   fetch    REF; 3: memfd with credentials or closed; 4: a seekable empty file, into which an OCI layout tar is written
 *            that `unpack` takes; network. --private: the registry may be in a private network, and without TLS.
 *            --registries LIST: these may be on this machine or in --infra too, which no other is fetched from.
 *            IMAGE_PROGRESS with bytes done and total.
 *   pack     3: a lay stream; 4: out, tar + zstd with OCI whiteouts. IMAGE_DONE: the diff_id of the tar before
 * compression, digest and size of what was written.
 */
#ifndef HUTCH_IMAGE_IMAGE_H
#define HUTCH_IMAGE_IMAGE_H

#include "stock/worker.h"

/* hutch-node image ...: does not return to the caller's other work. Exit code. */
int image_main(int argc, char **argv);

#endif
