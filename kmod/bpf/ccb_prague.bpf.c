/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "kernel.bpf.h"
#include "../core/prague.h"
#define CCB prague
#define CCB_NAME "ccb_prague"
#define CCB_WANTS CC_PRAGUE_WANTS
#define CCB_PARAM_LIST CC_PRAGUE_PARAMS
#include "adapter.bpf.h"
