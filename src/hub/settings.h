/* What the environment says about the hub: its address, the cache folder, the user's token. Variables have the meaning that
 * they have for huggingface_hub. */
#ifndef QN_HUB_SETTINGS_H
#define QN_HUB_SETTINGS_H

#include "base/status.h"

#include <stdbool.h>

typedef struct qn_hub_settings {
    char *endpoint; /* HF_ENDPOINT without slashes at its end; https://huggingface.co */
    char *cache;    /* the folder of models--OWNER--REPO */
    char *token;    /* or NULL */
    bool offline;   /* no request is to be made */
    long timeout;   /* seconds without a byte after which a request has failed */
} qn_hub_settings;

/* qn_hub_settings_read - QN_ERR_INVALID where a variable cannot be what it should; QN_ERR_IO where neither HF_HOME nor HOME
 * says where the cache is. Free with qn_hub_settings_free, whatever the status. */
qn_status qn_hub_settings_read(qn_hub_settings *settings);

void qn_hub_settings_free(qn_hub_settings *settings);

#endif
