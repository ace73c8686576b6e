/* The public Walsh-Hadamard transform: checks the arguments, then calls the kernel of kernels/hadamard/ block by
 * block. */
#include "quern/kernels.h"

#include "kernels/api_check.h"

qn_status qn_hadamard(qn_view x, qn_view signs, size_t n_rows, size_t width, size_t block, qn_hadamard_order order)
{
    const float *s = signs.data;
    QN_TRY(qn_api_ready());
    if (!block || block & (block - 1) || block > QN_HADAMARD_MAX_BLOCK)
        return qn_fail(QN_ERR_INVALID, "block: %zu, expected a power of two of 1 to %d", block, QN_HADAMARD_MAX_BLOCK);
    if (width % block)
        return qn_fail(QN_ERR_INVALID, "width: %zu, expected a multiple of the block %zu", width, block);
    if (order != QN_HADAMARD_SIGN_FIRST && order != QN_HADAMARD_SIGN_LAST)
        return qn_fail(QN_ERR_INVALID, "order: %d, expected %d or %d", (int)order, QN_HADAMARD_SIGN_FIRST,
                       QN_HADAMARD_SIGN_LAST);
    QN_TRY(qn_check_view("x", x, QN_DTYPE_F32, n_rows, width, 1));
    if (!qn_view_absent(signs))
        QN_TRY(qn_check_view("signs", signs, QN_DTYPE_F32, width, 1, 1));
    for (size_t i = 0; s && i < width; i++)
        if (s[i] != 1 && s[i] != -1)
            return qn_fail(QN_ERR_INVALID, "signs: element %zu is %g, expected 1 or -1", i, (double)s[i]);
    for (size_t row = 0; row < n_rows; row++)
        for (size_t at = 0; at < width; at += block)
            qn_api_kernels.hadamard.block((float *)x.data + row * width + at, block,
                                          s && order == QN_HADAMARD_SIGN_FIRST ? s + at : NULL,
                                          s && order == QN_HADAMARD_SIGN_LAST ? s + at : NULL);
    return QN_OK;
}
