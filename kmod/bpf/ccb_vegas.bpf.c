/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "kernel.bpf.h"
#include "../core/vegas.h"
#define CCB vegas
#define CCB_NAME "ccb_vegas"
#define CCB_WANTS CC_VEGAS_WANTS
#define CCB_PARAM_LIST CC_VEGAS_PARAMS
#include "adapter.bpf.h"
