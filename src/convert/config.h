/* config.json of a checkpoint: the hyper-parameters of its model, and the GGUF keys that store them. */
#ifndef QN_CONVERT_CONFIG_H
#define QN_CONVERT_CONFIG_H

#include "convert/packing.h"
#include "gguf/gguf.h"
#include "gguf/json.h"

typedef enum qn_config_kind { QN_CONFIG_LLAMA, QN_CONFIG_QWEN2, QN_CONFIG_QWEN3, QN_CONFIG_QWEN35 } qn_config_kind;

typedef enum qn_config_rope {
    QN_CONFIG_ROPE_PLAIN,
    QN_CONFIG_ROPE_LINEAR,
    QN_CONFIG_ROPE_YARN,
    QN_CONFIG_ROPE_LLAMA3
} qn_config_rope;

/* Hyper-parameters, within the ranges that models may have: the product of any two fits 64 bits. */
typedef struct qn_config {
    const char *path;
    json_t *json;       /* the whole file */
    const json_t *text; /* the text model's part: text_config, or the whole file */
    qn_config_kind kind;
    qn_packing packing;
    bool is_f16;              /* the weights are f16, as `dtype` says, before they are packed; else bf16 */
    const char *class_name;   /* "Qwen3ForCausalLM", as in the file */
    const char *architecture; /* "qwen3": general.architecture */
    uint32_t n_vocab, n_embd, n_ff, n_layers, n_mtp, n_heads, n_kv_heads, head_dim, n_ctx;
    bool writes_head_dim; /* the head size has its own key */
    bool tied;            /* the embedding is also the output matrix */
    double eps, rope_base;
    qn_config_rope rope;
    double rope_factor, rope_low_factor, rope_high_factor;
    double rope_attn_factor, rope_beta_fast, rope_beta_slow; /* of YaRN; the first one multiplies cosines and sines */
    bool rope_untruncated;                                   /* YaRN's ramp is not rounded to pairs */
    uint32_t n_rot, rope_original_ctx;                       /* n_rot: elements of a head that are rotated */
    const json_t *rope_json;  /* rope_parameters or rope_scaling; NULL if there is none */
    const char *rope_ignored; /* a key in it that its rope_type does not use, or NULL */
    /* Qwen3.5 */
    uint32_t rope_sections[4];
    uint32_t n_k_heads, n_v_heads, head_k, head_v, taps;
    uint32_t interval;  /* every interval-th layer is attention, if the layers follow such a rule */
    bool *is_recurrent; /* [n_layers + n_mtp] */
    bool names_mtp;     /* the file has the key of n_mtp */
} qn_config;

/* qn_config_read - reads config.json.
 *
 *   config   zeroed; free it with qn_config_free, even after an error
 *   path     must stay valid as long as the configuration
 *
 * QN_ERR_UNSUPPORTED, with the key, for a model that quern cannot run. */
qn_status qn_config_read(qn_config *config, const char *path);
void qn_config_free(qn_config *config);

/* qn_config_set_mtp - sets the number of MTP blocks of a model of kind QN_CONFIG_QWEN35, for checkpoints that have them
 * though their configuration does not say so. */
qn_status qn_config_set_mtp(qn_config *config, uint32_t n_mtp);

/* qn_config_write - adds the keys of the architecture to a GGUF file. */
qn_status qn_config_write(const qn_config *config, qn_gguf_writer *writer);

/* qn_config_yarn_mscale - YaRN's factor of cosines and sines, 0.1 multiplier log(factor) + 1, for factor > 1; else 1.
 *
 *   multiplier   1, unless a configuration has mscale */
double qn_config_yarn_mscale(double factor, double multiplier);

/* qn_config_has_rope_factors - whether the scaling is stored as divisors of the frequencies, one for each pair:
 * Llama 3's, and YaRN's with an unrounded ramp, for which GGUF has no key. */
bool qn_config_has_rope_factors(const qn_config *config);

/* qn_config_rope_factors - writes the divisors, [n_rot / 2]. */
void qn_config_rope_factors(const qn_config *config, float *factors);

#endif
