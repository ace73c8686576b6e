/* Finds a model in the cache, or downloads it. */
#include "hub/hub.h"

#include "base/available.h"
#include "hub/cache.h"
#include "hub/fetch.h"

#include <stdio.h>
#include <string.h>

/* Finds a model offline, in another snapshot. Any snapshot may be used for branch main, so that every model that `quern
 * list` shows can be used. */
static qn_status find_offline(const qn_hub_cache *cache, const qn_hub_params *params, const qn_hub_name *name,
                              char **path)
{
    char commit[QN_HUB_COMMIT_LENGTH + 1], line[320];
    const bool is_main = strcmp(name->revision, "main") == 0;
    if (is_main)
        QN_TRY(qn_hub_find_elsewhere(cache, name, commit, path));
    if (!*path)
        return qn_fail(QN_ERR_IO, "%s%s%s%s%s%s: not in %s, and HF_HUB_OFFLINE forbids to ask the hub", name->repo,
                       is_main ? "" : "@", is_main ? "" : name->revision, *name->file || *name->type ? ":" : "",
                       name->file, name->type, cache->path);
    snprintf(line, sizeof line, "%s: using commit %s, since branch main in the cache lacks it", name->repo, commit);
    if (params->on_log)
        params->on_log(params->user, line);
    return QN_OK;
}

/* Finds a model in the cache. Offline, in any snapshot; otherwise *path is NULL if that of the revision lacks it. */
static qn_status find(const qn_hub_settings *settings, const qn_hub_params *params, const qn_hub_name *name,
                      char **path)
{
    qn_hub_cache cache;
    qn_status status = qn_hub_cache_open(settings->cache, false, &cache);
    if (!status)
        status = qn_hub_find_cached(&cache, name, path);
    if (!status && !*path && settings->offline)
        status = find_offline(&cache, params, name, path);
    qn_hub_cache_close(&cache);
    return status;
}

/* Uses the cache if it is allowed (`cached`) or the only way (offline), else the network. */
static qn_status get(const qn_hub_settings *settings, const qn_hub_params *params, const qn_hub_name *name, bool cached,
                     char **path)
{
    *path = NULL;
    if (cached || settings->offline)
        QN_TRY(find(settings, params, name, path));
    return *path ? QN_OK : qn_hub_fetch(settings, params, name, path);
}

static qn_status begin(const char *text, const qn_hub_params *params, bool cached, char **path)
{
    const qn_hub_params with_memory = {
        .memory = params->memory ? params->memory : qn_available_memory(),
        .on_log = params->on_log,
        .on_progress = params->on_progress,
        .user = params->user,
    };
    qn_hub_name name;
    qn_hub_settings settings;
    *path = NULL;
    QN_TRY(qn_hub_name_parse(text, &name));
    qn_status status = qn_hub_settings_read(&settings);
    if (!status)
        status = get(&settings, &with_memory, &name, cached, path);
    qn_hub_settings_free(&settings);
    return status;
}

qn_status qn_hub_pull(const char *name, const qn_hub_params *params, char **path)
{
    return begin(name, params, false, path);
}

qn_status qn_hub_find(const char *name, const qn_hub_params *params, char **path)
{
    return begin(name, params, true, path);
}
