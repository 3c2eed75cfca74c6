/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBRv3.
 *
 * Sources: google/bbr, net/ipv4/tcp_bbr.c of branch v3 (001a430b), step by step, and draft-ietf-ccwg-bbr. bbr_common.h lists the
 * differences and their reasons. For differences from BBRv2 see bbr2.h.
 *
 * ecn_enable replaces the source's route attribute. It is off by default, and needs marks from a shallow queue and per-packet feedback.
 * State diagram and units: bbr_common.h.
 */
#ifndef CC_BBR3_H
#define CC_BBR3_H

#include "bbr_fast_path.h"

#define CC_BBR3_WANTS CC_BBR_WANTS
#define CC_BBR3_PARAMS(X) CC_BBR_LIST(X, 2774, 2000, 2250, 910, 6, 50)

CC_SHAPE(bbr3, CC_BBR3_PARAMS, CC_BBR_STATS);
CC_ASSERT(sizeof(struct cc_bbr3_params) == sizeof(struct cc_bbr_params), "bbr3 parameters");

struct cc_bbr3_state {
	struct cc_bbr_state bbr;
};
CC_STORAGE_FITS(bbr3);

#define CC_BBR3_RULES(X) /* none between parameters */

CC_BBR_CORE(bbr3, 3)

#endif
