/* image.h - the image worker: parses untrusted input (archives, image manifests, compressed data, a registry's answers)
 * and turns it into lay streams. It is its own process, `hutch-node image WHAT`, which a job of the layer store starts as an
 * ordinary user, without capabilities, with its own system call filter, an empty directory as its root and (except for
 * fetch) no network; it can only read its input and write its outputs. The job trusts nothing that it says.
 *
 * Descriptors: 3 input, 4 output, 5 control (SEQPACKET, to the job), 6 scratch, 7 the directory that becomes its root
 * (with CAP_SYS_CHROOT, which it then gives up; without it, Landlock alone). Every failure is one IMAGE_FAILED on
 * control, with a sentence for the user, and exit code 1. The messages are in stock/worker.h.
 *
 *   unpack   3: an archive made by `docker save`, `skopeo copy oci-archive:`, or a tar of an OCI layout directory,
 *            plain, gzip, bzip2, xz or zstd; seekable. If it is compressed, 6 must be an empty file for the unpacked
 *            archive. --image NAME: which of several; --hutch: it must be a complete export of ours.
 *            Layers are written to 4 one after another, each a whole lay stream, bottom layer first. Before each comes
 *            IMAGE_LAYER with the diff_id of the configuration; the job answers IMAGE_GO. The last record of a stream
 *            is written only after diff_id and digest were verified. After the last layer come IMAGE_CONFIG and
 *            IMAGE_DONE with a note in text.
 *   layer    3: one tar, plain, gzip, bzip2, xz or zstd. One lay stream to 4, then IMAGE_DONE. Whiteouts are ordinary
 *            names unless --oci; --hutch: pack wrote it.
 *   fetch    REF; 3: memfd with credentials or closed; 4: a seekable empty file, gets an OCI layout tar for `unpack`;
 *            network. --private: the registry may be in a private network, and without TLS. --registries LIST: only
 *            these may also be on this machine or in --infra. IMAGE_PROGRESS with bytes done and total.
 *   pack     3: a lay stream; 4: out, tar + zstd with OCI whiteouts. IMAGE_DONE: the diff_id of the tar before
 *            compression, digest and size of the output.
 */
#ifndef HUTCH_IMAGE_IMAGE_H
#define HUTCH_IMAGE_IMAGE_H

#include "layers/worker.h"

/* `hutch-node image ...`: returns an exit code for wrong arguments; otherwise ends the process itself. */
int image_main(int argc, char **argv);

#endif
