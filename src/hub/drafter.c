/* Names of drafters in repositories. llama.cpp's converter writes an MTP block alone as mtp-NAME.gguf, and its program
 * looks for mtp-, dflash- and eagle3- (common/download.cpp); unsloth has a folder MTP with NAME-TYPE-MTP.gguf. Models
 * with their block have names with MTP, too. */
#include "hub/files.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* Returns where a word is in a text of `length`: letters and digits are not next to it. NULL if it is not there. */
static const char *find_word(const char *text, size_t length, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= length; i++)
        if (strncasecmp(text + i, word, n) == 0 && (i == 0 || !isalnum((unsigned char)text[i - 1])) &&
            (i + n == length || !isalnum((unsigned char)text[i + n])))
            return text + i;
    return NULL;
}

static bool has_any(const char *text, size_t length, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (find_word(text, length, words[i]))
            return true;
    return false;
}

qn_hub_guess qn_hub_guess_drafter(const char *path)
{
    static const char *const drafters[] = { "draft", "drafts", "drafter", "drafters", "dflash",    "dflash2",
                                            "eagle", "eagle2", "eagle3",  "dspark",   "speculator" };
    static const char *const alone[] = { "mtp-only", "mtp-head", "mtp-draft", "mtp-block", "mtp_only", "mtp_head" };
    const char *base = qn_hub_path_base(path);
    const size_t folders = (size_t)(base - path), length = strlen(base);
    if (find_word(path, folders, "mtp") || has_any(base, length, alone, sizeof alone / sizeof *alone))
        return QN_HUB_MTP;
    const char *mtp = find_word(base, length, "mtp");
    if (mtp == base && length > 3)
        return QN_HUB_MTP;
    if (has_any(path, folders + length, drafters, sizeof drafters / sizeof *drafters))
        return QN_HUB_DRAFTER;
    return mtp ? QN_HUB_PERHAPS_MTP : QN_HUB_ORDINARY;
}
