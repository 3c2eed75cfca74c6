/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* All cores, and the named schemes, which are cores with preset parameters. */
#ifndef CC_SCHEMES_H
#define CC_SCHEMES_H

#include "bbr2.h"
#include "bbr3.h"
#include "cx.h"
#include "dctcp.h"
#include "echo.h"
#include "prague.h"
#include "ta.h"
#include "vegas.h"

/* X(core, what it requires from its host) */
#define CC_CORES(X)                                                                                \
	X(vegas, CC_VEGAS_WANTS)                                                                   \
	X(ta, CC_TA_WANTS)                                                                         \
	X(cx, CC_CX_WANTS)                                                                         \
	X(dctcp, CC_DCTCP_WANTS)                                                                   \
	X(prague, CC_PRAGUE_WANTS)                                                                 \
	X(bbr2, CC_BBR2_WANTS)                                                                     \
	X(bbr3, CC_BBR3_WANTS)

/* X(scheme, core, parameters that differ from the core's defaults) */
#define CC_SCHEMES(X)                                                                              \
	X(vegas, vegas, "")                                                                        \
	X(ta, ta, "compete=1,comeback=0")                                                          \
	X(ta_grad, ta, "compete=1,comeback=1")                                                     \
	X(ta_per, ta, "compete=1,comeback=1,P1=200,P2=5,drop=95")                           \
	X(cx, cx, "betao=2000,del_th=4000,del_max=150000")                                         \
	X(cx_rttvar, cx, "mdev_scaling=1,betao=2000,del_th=4000,del_max=150000")                   \
	X(cx_shadow, cx, "shadow=1,betao=2000,del_th=4000,del_max=150000")                         \
	X(cx15, cx, "betao=2000,del_th=4000,del_max=15000")                                        \
	X(cx15_rttvar, cx, "mdev_scaling=1,betao=2000,del_th=4000,del_max=15000")                  \
	X(cx15_shadow, cx, "shadow=1,betao=2000,del_th=4000,del_max=15000")                        \
	X(dctcp, dctcp, "")                                                                        \
	X(prague, prague, "")                                                                      \
	X(bbr2, bbr2, "")                                                                          \
	X(bbr3, bbr3, "")

#endif
