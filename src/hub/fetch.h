/* The part of qn_hub_pull that needs the network. */
#ifndef QN_HUB_FETCH_H
#define QN_HUB_FETCH_H

#include "hub/hub.h"
#include "hub/settings.h"

/* qn_hub_fetch - as qn_hub_pull, with a parsed name; params->memory must be set. fetch.c implements it with libcurl;
 * if quern is built without libcurl, no_network.c reports what to install. */
qn_status qn_hub_fetch(const qn_hub_settings *settings, const qn_hub_params *params, const qn_hub_name *name,
                       char **path);

#endif
