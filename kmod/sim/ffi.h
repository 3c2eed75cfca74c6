/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What ffi.c adds to host.h for programs in other languages. All strings are constants of the program. */
#ifndef CC_FFI_H
#define CC_FFI_H

#include "host.h"

/* Returns the size of struct cc_conn (0), cc_ack (1), cc_out (2), cc_fault (3) or cc_bursts (4). */
size_t cc_ffi_size(u32 which);

/* Initialises *conn with the parameters of a scheme or core. -1 if none has this name. */
int cc_ffi_start(struct cc_conn *conn, const char *scheme);

/* Sets a parameter without checking it. -1 if the core has none with this name. */
int cc_ffi_set(struct cc_conn *conn, const char *name, u32 value);
int cc_ffi_check(const struct cc_conn *conn, struct cc_fault *fault);

const char *cc_ffi_name(const struct cc_conn *conn); /* of the core */
/* The name of parameter or stat i; null beyond the last. */
const char *cc_ffi_param_name(const struct cc_conn *conn, u32 i);
const char *cc_ffi_stat_name(const struct cc_conn *conn, u32 i);
const char *cc_ffi_stat_unit(const struct cc_conn *conn, u32 i);

/* The first violated invariant, or null. */
const char *cc_ffi_violation(const struct cc_conn *conn, u64 *value);

#endif
