/* The part of qn_hub_pull that needs the network. */
#ifndef QN_HUB_FETCH_H
#define QN_HUB_FETCH_H

#include "hub/hub.h"
#include "hub/settings.h"

/* qn_hub_fetch - as qn_hub_pull, with a parsed name and params->memory set. fetch.c implements it with libcurl; where quern is
 * built without it, no_network.c says what to install. */
qn_status qn_hub_fetch(const qn_hub_settings *settings, const qn_hub_params *params, const qn_hub_name *name, char **path);

#endif
