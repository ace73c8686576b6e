/* Reads quantization_config. Its keys are those of transformers' configuration classes (FineGrainedFP8Config,
 * GPTQConfig, AwqConfig, ...) and of compressed-tensors. */
#include "convert/packing.h"

#include "gguf/json_decode.h"

#include <string.h>

enum { DEFAULT_BLOCK = 128, MAX_BLOCK = 1 << 20 };

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static qn_status refuse(const char *path, const char *what, const char *found)
{
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "%s: weights packed by %s%s%.60s are not read: convert the model that it was made from, or load it "
                   "in transformers, call dequantize() and save_pretrained(), and convert that",
                   path, what, *found ? " as " : "", found);
}

static qn_status read_block(qn_packing *p, const char *path, const json_t *block, const char *key)
{
    const json_int_t rows = json_integer_value(json_array_get(block, 0)),
                     columns = json_integer_value(json_array_get(block, 1));
    char found[QN_JSON_FOUND_BYTES];
    p->block_rows = p->block_columns = DEFAULT_BLOCK;
    if (!block || json_is_null(block))
        return QN_OK;
    if (json_array_size(block) != 2 || rows < 1 || rows > MAX_BLOCK || columns < 1 || columns > MAX_BLOCK)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is %s, expected two integers of 1 to %d", path, key,
                       qn_json_found(block, found), MAX_BLOCK);
    p->block_rows = (uint32_t)rows;
    p->block_columns = (uint32_t)columns;
    return QN_OK;
}

static qn_status read_group(qn_packing *p, const char *path, const json_t *config)
{
    const json_t *value = json_object_get(config, "group_size");
    const json_int_t group = json_integer_value(value);
    char found[QN_JSON_FOUND_BYTES];
    if (value && (!json_is_integer(value) || group < -1 || group == 0 || group > MAX_BLOCK))
        return qn_fail(QN_ERR_FORMAT, "%s: 'group_size' is %s, expected -1 or an integer of 1 to %d", path,
                       qn_json_found(value, found), MAX_BLOCK);
    p->group = group > 0 ? (uint32_t)group : 0;
    return QN_OK;
}

static qn_status read_compressed(qn_packing *p, const char *path, const json_t *config)
{
    const char *format = text_of(config, "format"), *name;
    const json_t *group;
    p->kind = QN_PACKING_FP8;
    QN_TRY(read_block(p, path, NULL, ""));
    if (strcmp(format, "float-quantized") != 0 && strcmp(format, "naive-quantized") != 0)
        return refuse(path, "compressed-tensors", format);
    json_object_foreach((json_t *)json_object_get(config, "config_groups"), name, group)
    {
        const json_t *weights = json_object_get(group, "weights");
        if (!weights || json_is_null(weights))
            continue;
        if (strcmp(text_of(weights, "type"), "float") != 0 ||
            json_integer_value(json_object_get(weights, "num_bits")) != 8)
            return refuse(path, "compressed-tensors", "weights other than floats of 8 bits");
        QN_TRY(read_block(p, path, json_object_get(weights, "block_structure"), "block_structure"));
    }
    return QN_OK;
}

static qn_status read_gptq(qn_packing *p, const char *path, const json_t *config)
{
    const char *format = text_of(config, "checkpoint_format");
    p->kind = QN_PACKING_GPTQ;
    p->zeros_are_less_one = strcmp(format, "gptq_v2") != 0;
    if ((*format && strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0) ||
        json_is_true(json_object_get(config, "is_marlin_format")))
        return refuse(path, "GPTQ", *format ? format : "marlin");
    return read_group(p, path, config);
}

static qn_status read_awq(qn_packing *p, const char *path, const json_t *config)
{
    const char *version = text_of(config, "version");
    const json_t *bits = json_object_get(config, "bits");
    p->kind = QN_PACKING_AWQ;
    if (*version && strcasecmp(version, "gemm") != 0)
        return refuse(path, "AWQ", version);
    if (bits && json_integer_value(bits) != 4)
        return refuse(path, "AWQ", "weights of other than 4 bits");
    return read_group(p, path, config);
}

qn_status qn_packing_read(qn_packing *p, const char *path, const json_t *config)
{
    const char *method = text_of(config, "quant_method");
    *p = (qn_packing){ 0 };
    if (!config)
        return QN_OK;
    if (strcmp(method, "fp8") == 0 || strcmp(method, "fbgemm_fp8") == 0) {
        p->kind = QN_PACKING_FP8;
        return read_block(p, path, json_object_get(config, "weight_block_size"), "weight_block_size");
    }
    if (strcmp(method, "modelopt") == 0 && strcmp(text_of(config, "quant_algo"), "FP8") == 0) {
        p->kind = QN_PACKING_FP8;
        return read_block(p, path, NULL, "");
    }
    if (strcmp(method, "compressed-tensors") == 0)
        return read_compressed(p, path, config);
    if (strcmp(method, "gptq") == 0)
        return read_gptq(p, path, config);
    if (strcmp(method, "awq") == 0)
        return read_awq(p, path, config);
    /* MLX writes its own `quantization` under this name, too. */
    if (!*method && json_object_get(config, "bits")) {
        const char *mode = text_of(config, "mode");
        return *mode && strcmp(mode, "affine") != 0 ? refuse(path, "MLX", mode) : QN_OK;
    }
    return refuse(path, *method ? method : "an unnamed method", "");
}
