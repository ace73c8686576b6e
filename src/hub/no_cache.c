/* Replaces the hub's cache where its folders cannot be opened as descriptors: on macOS, so far. */
#include "hub/hub.h"

static qn_status refuse(const char *name)
{
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "%s: this quern has no cache of models from the hub; give the path of a GGUF file", name);
}

qn_status qn_hub_pull(const char *name, const qn_hub_params *params, char **path)
{
    (void)params;
    *path = NULL;
    return refuse(name);
}

qn_status qn_hub_find(const char *name, const qn_hub_params *params, char **path)
{
    (void)params;
    *path = NULL;
    return refuse(name);
}

qn_status qn_hub_list(bool (*on_entry)(void *user, const qn_hub_entry *entry), void *user)
{
    (void)on_entry, (void)user;
    return refuse("list");
}

qn_status qn_hub_remove(const char *name, qn_hub_removed *removed)
{
    *removed = (qn_hub_removed){ 0 };
    return refuse(name);
}
