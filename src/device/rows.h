/* What the rows of a step may have besides tokens, and which devices take it. */
#ifndef QN_DEVICE_ROWS_H
#define QN_DEVICE_ROWS_H

#include "device/device.h"

/* qn_device_check_features - QN_ERR_UNSUPPORTED, naming the device and the feature, unless the device takes all of
 * these QN_ROW_* (qn_device.row_features). */
qn_status qn_device_check_features(const qn_device *device, unsigned features);

/* qn_row_features - returns the QN_ROW_* that n rows need. */
unsigned qn_row_features(const qn_row *rows, size_t n);

#endif
