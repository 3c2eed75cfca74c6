/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Checks every core in this kernel against the golden rows. Rows as bpf_agree.py --rows writes them go to /dev/ccb_agree; the parameters
 * calls and mismatches count. Only for the tests in a virtual machine.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "../core/schemes.h"

/* As in kmod/sim/bpf_agree.bpf.c. */
enum { INIT, SAMPLE, ACK, LOSS, EVENT, UNDO, PARAMS };

struct call {
	u32 kind, event;
	struct cc_ack a;
	struct cc_out out;
	u32 values[32];
};

static u64 state[CC_STORAGE_BYTES / 8];
static u32 params[32], core;
static uint calls, mismatches;
module_param(calls, uint, 0444);
module_param(mismatches, uint, 0444);
static struct call row;
static size_t filled;

#define CORE_CALL(NAME, WANTS)                                                                     \
	static u32 NAME##_call(const struct call *c, struct cc_out *out, u32 *stats)               \
	{                                                                                          \
		struct cc_##NAME##_state *st = (void *)state;                                      \
		const struct cc_##NAME##_params *p = (const void *)params;                         \
                                                                                                   \
		cc_keep(&c->a, out);                                                               \
		if (c->kind == INIT)                                                               \
			cc_##NAME##_init(st, p, &c->a, out);                                       \
		else if (c->kind == SAMPLE)                                                        \
			out->flags = cc_##NAME##_on_sample(st, p, &c->a);                          \
		else if (c->kind == ACK)                                                           \
			cc_##NAME##_on_ack(st, p, &c->a, out);                                     \
		else if (c->kind == LOSS)                                                          \
			out->ssthresh_pkts = cc_##NAME##_on_loss(st, p, &c->a);                    \
		else if (c->kind == EVENT)                                                         \
			cc_##NAME##_on_event(st, p, c->event, &c->a, out);                         \
		else                                                                               \
			out->cwnd_pkts = cc_##NAME##_undo(st, p, &c->a);                           \
		cc_##NAME##_read(st, p, &c->a, (struct cc_##NAME##_stats *)stats);                 \
		return sizeof(struct cc_##NAME##_stats);                                           \
	}
CC_CORES(CORE_CALL)

#define CORE_ENTRY(NAME, WANTS) {#NAME, NAME##_call},
static const struct {
	const char *name;
	u32 (*call)(const struct call *c, struct cc_out *out, u32 *stats);
} cores[] = {CC_CORES(CORE_ENTRY)};

static void one(const struct call *c)
{
	struct cc_out out;
	u32 stats[32], bytes;

	if (c->kind == PARAMS) {
		core = c->event < ARRAY_SIZE(cores) ? c->event : 0;
		memcpy(params, c->values, sizeof(params));
		memset(state, 0, sizeof(state));
		return;
	}
	bytes = cores[core].call(c, &out, stats);
	calls++;
	if (out.cwnd_pkts == c->out.cwnd_pkts && out.ssthresh_pkts == c->out.ssthresh_pkts &&
	    out.flags == c->out.flags && out.pacing_bytes_per_sec == c->out.pacing_bytes_per_sec &&
	    !memcmp(stats, c->values, bytes))
		return;
	if (!mismatches++)
		pr_err("%s: call %u of kind %u: cwnd %u, wanted %u\n", cores[core].name, calls, c->kind,
		       out.cwnd_pkts, c->out.cwnd_pkts);
}

static ssize_t agree_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	size_t done = 0, part;

	while (done < size) {
		part = min(size - done, sizeof(row) - filled);
		if (copy_from_user((char *)&row + filled, from + done, part))
			return -EFAULT;
		filled += part;
		done += part;
		if (filled < sizeof(row))
			break;
		filled = 0;
		one(&row);
	}
	return done;
}

static const struct file_operations agree_files = {.owner = THIS_MODULE, .write = agree_write};
static struct miscdevice agree_device = {
	.minor = MISC_DYNAMIC_MINOR, .name = "ccb_agree", .fops = &agree_files, .mode = 0200};
module_misc_device(agree_device);
MODULE_AUTHOR("ccbench");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("ccbench's congestion control cores against their golden rows");
