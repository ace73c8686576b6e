/* Checks of rows against what a device takes. */
#include "device/rows.h"

qn_status qn_device_check_features(const qn_device *device, unsigned features)
{
    const unsigned missing = features & ~device->row_features;
    if (missing & QN_ROW_EMBEDDING)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: rows with embeddings are not supported, only tokens", device->name);
    if (missing & QN_ROW_POSITION)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: rows with positions of their own are not supported, only consecutive ones", device->name);
    if (missing & QN_ROW_HIDDEN)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: hidden states of rows are not supported, only logits", device->name);
    return QN_OK;
}

unsigned qn_row_features(const qn_row *rows, size_t n)
{
    unsigned features = 0;
    for (size_t i = 0; i < n; i++) {
        const qn_row *row = &rows[i];
        features |= row->embedding ? QN_ROW_EMBEDDING : 0u;
        features |= row->hidden || row->normed ? QN_ROW_HIDDEN : 0u;
        for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++)
            features |= row->rope_offsets[c] ? QN_ROW_POSITION : 0u;
    }
    return features;
}
