/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Every core, and the named schemes: a core with the parameters that a study or a user gave it. */
#ifndef CC_SCHEMES_H
#define CC_SCHEMES_H

#include "vegas.h"

/* X(core, what it asks of its host) */
#define CC_CORES(X) X(vegas, CC_VEGAS_WANTS)

/* X(scheme, core, parameters that differ from the core's defaults) */
#define CC_SCHEMES(X) X(vegas, vegas, "")

#endif
