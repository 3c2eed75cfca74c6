/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "kernel.bpf.h"
#include "../core/bbr3.h"
#define CCB bbr3
#define CCB_NAME "ccb_bbr3"
#define CCB_WANTS CC_BBR3_WANTS
#define CCB_PARAM_LIST CC_BBR3_PARAMS
#include "adapter.bpf.h"
