/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "kernel.bpf.h"
#include "../core/cx.h"
#define CCB cx
#define CCB_NAME "ccb_cx"
#define CCB_WANTS CC_CX_WANTS
#define CCB_PARAM_LIST CC_CX_PARAMS
#include "adapter.bpf.h"
