/* Settings of the hub from environment variables: its address, the cache folder, the user's token. Variables mean
 * the same as for huggingface_hub. */
#ifndef QN_HUB_SETTINGS_H
#define QN_HUB_SETTINGS_H

#include "base/status.h"

#include <stdbool.h>

typedef struct qn_hub_settings {
    char *endpoint; /* HF_ENDPOINT without slashes at its end; by default https://huggingface.co */
    char *cache;    /* the folder that contains models--OWNER--REPO */
    char *token;    /* or NULL */
    bool offline;   /* no requests may be made */
    long timeout;   /* a request fails after this number of seconds without a byte */
} qn_hub_settings;

/* qn_hub_settings_read - reads the settings. QN_ERR_INVALID for a variable with an invalid value; QN_ERR_IO if
 * neither HF_HOME nor HOME tells where the cache is. Free them with qn_hub_settings_free, even after an error. */
qn_status qn_hub_settings_read(qn_hub_settings *settings);

void qn_hub_settings_free(qn_hub_settings *settings);

#endif
