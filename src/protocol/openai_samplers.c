/* `samplers`, llama.cpp's list of samplers in their order: checks the names. */
#include "protocol/openai.h"

#include <string.h>

enum { MAX_SAMPLERS = 64 };

/* llama.cpp's samplers and their letters. quern's order is fixed, and samplers with neutral values do nothing, so a
 * list changes nothing; infill has no value. */
static const struct {
    const char *name, *alias, *other;
    char letter;
} samplers[] = {
    { "penalties", NULL, NULL, 'e' },
    { "dry", NULL, NULL, 'd' },
    { "top_n_sigma", "top-n-sigma", NULL, 's' },
    { "top_k", "top-k", NULL, 'k' },
    { "typ_p", "typical_p", "typical-p", 'y' },
    { "typical", "typ-p", "typ", 'y' },
    { "top_p", "top-p", "nucleus", 'p' },
    { "min_p", "min-p", NULL, 'm' },
    { "xtc", NULL, NULL, 'x' },
    { "temperature", "temp", NULL, 't' },
    { "adaptive_p", "adaptive-p", NULL, 'a' },
};

static bool is_sampler(const char *name)
{
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++) {
        const char *const names[] = { samplers[i].name, samplers[i].alias, samplers[i].other };
        for (size_t j = 0; j < sizeof names / sizeof *names; j++)
            if (names[j] && !strcmp(names[j], name))
                return true;
    }
    return false;
}

static bool is_sampler_letter(char letter)
{
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++)
        if (samplers[i].letter == letter)
            return true;
    return false;
}

/* "edskypmxt": one letter per sampler. */
static bool check_sampler_letters(const json_t *given, qn_refusal *refusal)
{
    const char *letters = json_string_value(given);
    for (size_t i = 0; i < json_string_length(given); i++)
        if (!is_sampler_letter(letters[i]))
            return qn_refuse(refusal, 400, NULL, "samplers", "'samplers' has the letter '%.*s', which no sampler has",
                             (unsigned char)letters[i] < 0x80 ? 1 : 0, letters + i);
    return true;
}

bool qn_openai_check_samplers(const json_t *body, qn_refusal *refusal)
{
    const json_t *given = qn_field(body, "samplers");
    const size_t n = json_array_size(given);
    if (json_is_string(given))
        return check_sampler_letters(given, refusal);
    if (given && !json_is_array(given))
        return qn_refuse_type(refusal, "samplers", given, "an array of names, or a string of letters");
    if (n > MAX_SAMPLERS)
        return qn_refuse(refusal, 400, NULL, "samplers", "'samplers' has %zu names, at most %d are allowed", n,
                         MAX_SAMPLERS);
    for (size_t i = 0; i < n; i++) {
        const json_t *name = json_array_get(given, i);
        if (!json_is_string(name))
            return qn_refuse_type(refusal, "samplers", name, "an array of names");
        if (!is_sampler(json_string_value(name)))
            return qn_refuse(refusal, 400, NULL, "samplers", "'samplers' has '%.40s', which is not a sampler",
                             json_string_value(name));
    }
    return true;
}
