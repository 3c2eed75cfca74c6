/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Parameters and instances. The module's parameters are those of its first instance, ccb_NAME. Files in /sys/module/ccb_NAME/parameters
 * manage further instances, each with its own parameters:
 *
 *   echo "ta_slow betao=5000 comeback=0" >add     other parameters have their defaults
 *   echo ta_slow >remove                          for new sockets; existing ones keep it until they close
 *   cat instances                                 every instance with its parameters, one per line
 *
 * An invalid value is rejected with a message in the kernel log, never clamped.
 */
#ifndef CCB_INSTANCES_H
#define CCB_INSTANCES_H

#include <linux/ctype.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>

struct ccb_instance {
	struct tcp_congestion_ops ops;
	struct CORE(_params) params;
	struct list_head list;
	bool registered;
};

static struct ccb_instance ccb_first;
static LIST_HEAD(ccb_instances);
static DEFINE_MUTEX(ccb_lock); /* protects the list and parameter changes */
static bool ccb_ready;	       /* after init, every write is checked against all rules */

#define CCB_TABLE CORE(_table)
#define CCB_PARAMS ARRAY_SIZE(CCB_TABLE)

static int ccb_reject(const char *instance, const struct cc_fault *f)
{
	if (f->message)
		pr_err("%s: %s = %u: %s\n", instance, f->name, f->value, f->message);
	else
		pr_err("%s: %s = %u: allowed are %u to %u (%s)\n", instance, f->name, f->value, f->min, f->max,
		       f->unit);
	return -EINVAL;
}

static int ccb_check(const char *instance, const struct CORE(_params) *params)
{
	struct cc_fault fault;

	return CORE(_check)(params, &fault) ? ccb_reject(instance, &fault) : 0;
}

static bool ccb_needs_ecn(const struct CORE(_params) *params)
{
#if CCB_WANTS & CC_MAY_WANT_ECN
	return params->ecn_enable != 0;
#else
	return CCB_WANTS & CC_WANTS_ECN;
#endif
}

/* NON_RESTRICTED: a network namespace may use the instance as its default. */
static void ccb_set_flags(struct ccb_instance *in)
{
	u32 flags = TCP_CONG_NON_RESTRICTED;

	if (ccb_needs_ecn(&in->params))
		flags |= TCP_CONG_NEEDS_ECN;
	if (CCB_WANTS & CC_WANTS_ECT1)
		flags |= TCP_CONG_NEEDS_ACCECN | TCP_CONG_ECT_1_NEGOTIATION;
	WRITE_ONCE(in->ops.flags, flags);
}

static int ccb_parse_u32(const char *instance, const char *name, const char *text, u32 *value)
{
	if (!kstrtou32(text, 10, value))
		return 0;
	pr_err("%s: %s = \"%s\": not a number\n", instance, name, text);
	return -EINVAL;
}

/* Sets a parameter of the first instance. insmod checks all rules at the end, a later write at once. */
static int ccb_param_set(const char *text, const struct kernel_param *kp)
{
	struct CORE(_params) next;
	u32 at = (u32 *)kp->arg - (u32 *)&ccb_first.params, value;
	char word[16];
	int err;

	if (strscpy(word, text, sizeof(word)) < 0)
		return -EINVAL;
	err = ccb_parse_u32(CCB_NAME, kp->name, strim(word), &value);
	if (err)
		return err;
	mutex_lock(&ccb_lock);
	next = ccb_first.params;
	((u32 *)&next)[at] = value;
	if (ccb_ready)
		err = ccb_check(CCB_NAME, &next);
	if (!err) {
		WRITE_ONCE(*(u32 *)kp->arg, value);
		ccb_set_flags(&ccb_first);
	}
	mutex_unlock(&ccb_lock);
	return err;
}

static int ccb_param_get(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%u\n", *(u32 *)kp->arg);
}

static const struct kernel_param_ops ccb_param_ops = {.set = ccb_param_set, .get = ccb_param_get};

#define CCB_PARAM(name, unit, default_value, min, max, doc)                                             \
	module_param_cb(name, &ccb_param_ops, &ccb_first.params.name, 0644);                       \
	MODULE_PARM_DESC(name, doc " [" unit ", " #min ".." #max ", default " #default_value "]");

CCB_PARAM_LIST(CCB_PARAM)

static int ccb_parse_param(struct ccb_instance *in, char *word)
{
	char *value = strchr(word, '=');
	u32 i;

	if (value)
		*value++ = 0;
	for (i = 0; value && i < CCB_PARAMS; i++)
		if (!strcmp(CCB_TABLE[i].name, word))
			return ccb_parse_u32(in->ops.name, word, value, (u32 *)&in->params + i);
	pr_err("%s: \"%s\": write PARAMETER=NUMBER; parameters are listed in instances\n", in->ops.name, word);
	return -EINVAL;
}

/* "NAME key=value ..." */
static int ccb_parse(struct ccb_instance *in, char *text)
{
	char *word;
	int err = 0;

	text = strim(text);
	word = strsep(&text, " \t");
	if (!*word || strscpy(in->ops.name, word, sizeof(in->ops.name)) < 0) {
		pr_err("\"%s\": write a name of 1 to %d characters\n", word, TCP_CA_NAME_MAX - 1);
		return -EINVAL;
	}
	while (!err && (word = strsep(&text, " \t")))
		if (*word)
			err = ccb_parse_param(in, word);
	return err ? err : ccb_check(in->ops.name, &in->params);
}

static int ccb_add(const char *text, const struct kernel_param *kp)
{
	struct ccb_instance *in = kzalloc(sizeof(*in), GFP_KERNEL);
	char *copy = kstrdup(text, GFP_KERNEL);
	int err = -ENOMEM;

	if (!in || !copy)
		goto out;
	in->ops = ccb_first.ops;
	memset(&in->ops.list, 0, sizeof(in->ops.list));
	in->params = CORE(_defaults);
	err = ccb_ready ? ccb_parse(in, copy) : -EBUSY;
	if (err)
		goto out;
	ccb_set_flags(in);
	mutex_lock(&ccb_lock);
	err = tcp_register_congestion_control(&in->ops);
	if (!err) {
		in->registered = true;
		list_add_tail(&in->list, &ccb_instances);
	} else {
		pr_err("%s: cannot register: %d%s\n", in->ops.name, err,
		       err == -EEXIST ? " (the name is taken)" : "");
	}
	mutex_unlock(&ccb_lock);
out:
	kfree(copy);
	if (err)
		kfree(in);
	return err;
}

/* Unregisters an instance. It is freed only when the module is unloaded, because sockets may still use it. */
static int ccb_remove(const char *text, const struct kernel_param *kp)
{
	struct ccb_instance *in;
	char name[TCP_CA_NAME_MAX];
	int err = -ENOENT;

	if (strscpy(name, text, sizeof(name)) < 0)
		return -EINVAL;
	mutex_lock(&ccb_lock);
	list_for_each_entry(in, &ccb_instances, list) {
		if (!in->registered || strcmp(in->ops.name, strim(name)))
			continue;
		tcp_unregister_congestion_control(&in->ops);
		in->registered = false;
		err = 0;
		break;
	}
	mutex_unlock(&ccb_lock);
	return err;
}

static int ccb_list(char *text, const struct kernel_param *kp)
{
	struct ccb_instance *in;
	int at = 0;
	u32 i;

	mutex_lock(&ccb_lock);
	list_for_each_entry(in, &ccb_instances, list) {
		if (!in->registered)
			continue;
		at += sysfs_emit_at(text, at, "%s", in->ops.name);
		for (i = 0; i < CCB_PARAMS; i++)
			at += sysfs_emit_at(text, at, " %s=%u", CCB_TABLE[i].name, ((u32 *)&in->params)[i]);
		at += sysfs_emit_at(text, at, "\n");
	}
	mutex_unlock(&ccb_lock);
	return at;
}

static const struct kernel_param_ops ccb_add_ops = {.set = ccb_add};
static const struct kernel_param_ops ccb_remove_ops = {.set = ccb_remove};
static const struct kernel_param_ops ccb_list_ops = {.get = ccb_list};
module_param_cb(add, &ccb_add_ops, NULL, 0200);
MODULE_PARM_DESC(add, "write \"NAME parameter=value ...\" to add an instance (after loading)");
module_param_cb(remove, &ccb_remove_ops, NULL, 0200);
MODULE_PARM_DESC(remove, "write NAME to keep new sockets from using this instance");
module_param_cb(instances, &ccb_list_ops, NULL, 0444);
MODULE_PARM_DESC(instances, "instances and their parameters");

/* Unregisters and frees all instances. No socket uses any, because sockets hold a reference to the module. */
static void ccb_drop_all(void)
{
	struct ccb_instance *in, *next;

	list_for_each_entry_safe(in, next, &ccb_instances, list) {
		if (in->registered)
			tcp_unregister_congestion_control(&in->ops);
		list_del(&in->list);
		if (in != &ccb_first)
			kfree(in);
	}
}

#endif
