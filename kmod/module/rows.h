/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * /dev/ccb_NAME exports internal state of the sockets in the opener's network namespace. From open() on, a file receives one row per round
 * trip, and one when a state of the core begins, in the layout of the BPF adapter's rows (../bpf/README.md). read() returns as many whole
 * rows as are available and fit. It never blocks: EAGAIN if there is none. rows_lost in the fdinfo of a file (/proc/PID/fdinfo/FD) counts
 * rows that did not fit in the file's buffer; the parameter of this name counts those of all files. While no file is open, a row costs one
 * test.
 */
#ifndef CCB_ROWS_H
#define CCB_ROWS_H

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <net/net_namespace.h>

#define CCB_ROWS 16384 /* per open file; a power of two */

struct ccb_reader {
	struct list_head list;
	u64 netns_cookie;
	u64 lost;
	u32 head, tail; /* rows written, rows read; they wrap */
	struct ccb_row rows[CCB_ROWS];
};

static LIST_HEAD(ccb_readers);
static DEFINE_SPINLOCK(ccb_readers_lock);
static ulong ccb_rows_lost;
module_param_named(rows_lost, ccb_rows_lost, ulong, 0444);
MODULE_PARM_DESC(rows_lost, "rows that did not fit into the buffer of a file");

static bool ccb_rows_wanted(void)
{
	return !list_empty(&ccb_readers);
}

static void ccb_rows_add(const struct ccb_row *row)
{
	struct ccb_reader *r;

	spin_lock_bh(&ccb_readers_lock);
	list_for_each_entry(r, &ccb_readers, list) {
		if (r->netns_cookie != row->netns_cookie)
			continue;
		if (r->head - r->tail == CCB_ROWS) {
			r->lost++;
			ccb_rows_lost++;
			continue;
		}
		r->rows[r->head++ & (CCB_ROWS - 1)] = *row;
	}
	spin_unlock_bh(&ccb_readers_lock);
}

static int ccb_rows_open(struct inode *inode, struct file *file)
{
	struct ccb_reader *r = vzalloc(sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->netns_cookie = current->nsproxy->net_ns->net_cookie;
	file->private_data = r;
	spin_lock_bh(&ccb_readers_lock);
	list_add(&r->list, &ccb_readers);
	spin_unlock_bh(&ccb_readers_lock);
	return 0;
}

static int ccb_rows_release(struct inode *inode, struct file *file)
{
	struct ccb_reader *r = file->private_data;

	spin_lock_bh(&ccb_readers_lock);
	list_del(&r->list);
	spin_unlock_bh(&ccb_readers_lock);
	vfree(r);
	return 0;
}

static ssize_t ccb_rows_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	struct ccb_reader *r = file->private_data;
	struct ccb_row row;
	size_t done = 0;
	bool any;

	if (size < sizeof(row))
		return -EINVAL;
	while (size - done >= sizeof(row)) {
		spin_lock_bh(&ccb_readers_lock);
		any = r->head != r->tail;
		if (any)
			row = r->rows[r->tail++ & (CCB_ROWS - 1)];
		spin_unlock_bh(&ccb_readers_lock);
		if (!any)
			break;
		if (copy_to_user(to + done, &row, sizeof(row)))
			return -EFAULT;
		done += sizeof(row);
	}
	return done ? done : -EAGAIN;
}

static void ccb_rows_fdinfo(struct seq_file *to, struct file *file)
{
	struct ccb_reader *r = file->private_data;
	u64 lost;

	spin_lock_bh(&ccb_readers_lock);
	lost = r->lost;
	spin_unlock_bh(&ccb_readers_lock);
	seq_printf(to, "rows_lost:\t%llu\n", lost);
}

static const struct file_operations ccb_rows_files = {
	.owner = THIS_MODULE,
	.open = ccb_rows_open,
	.release = ccb_rows_release,
	.read = ccb_rows_read,
	.show_fdinfo = ccb_rows_fdinfo,
};

static struct miscdevice ccb_rows_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = CCB_NAME,
	.fops = &ccb_rows_files,
	.mode = 0400,
};

#endif
