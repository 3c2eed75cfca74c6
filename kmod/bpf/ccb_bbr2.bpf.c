/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "kernel.bpf.h"
#include "../core/bbr2.h"
#define CCB bbr2
#define CCB_NAME "ccb_bbr2"
#define CCB_WANTS CC_BBR2_WANTS
#define CCB_PARAM_LIST CC_BBR2_PARAMS
#include "adapter.bpf.h"
