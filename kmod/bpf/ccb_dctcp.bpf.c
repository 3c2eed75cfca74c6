/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "kernel.bpf.h"
#include "../core/dctcp.h"
#define CCB dctcp
#define CCB_NAME "ccb_dctcp"
#define CCB_WANTS CC_DCTCP_WANTS
#define CCB_PARAM_LIST CC_DCTCP_PARAMS
#include "adapter.bpf.h"
