/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "kernel.bpf.h"
#include "../core/ta.h"
#define CCB ta
#define CCB_NAME "ccb_ta"
#define CCB_WANTS CC_TA_WANTS
#define CCB_PARAM_LIST CC_TA_PARAMS
#include "adapter.bpf.h"
