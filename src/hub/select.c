/* Selects the files of a repository by name. */
#include "hub/files.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "quant/quant.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A server lists any number of files; each is compared with all only among these. */
enum { MAX_COMPARED = 2000 };

static bool find(const qn_hub_files *files, const char *path, size_t *index)
{
    size_t low = 0, high = files->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(files->at[middle].path, path);
        if (order == 0) {
            *index = middle;
            return true;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* ---- Models ---- */

static bool is_model(const qn_hub_file *file)
{
    char type[QN_HUB_TYPE_SIZE];
    const char *path = file->path;
    if (file->has_role && (file->role == QN_FILE_PROJECTOR || file->role == QN_FILE_IMATRIX))
        return false;
    const bool importance = qn_strcasestr(qn_hub_path_base(path), "imatrix") && !qn_hub_path_type(path, type);
    return qn_hub_path_is_gguf(path) && !qn_strcasestr(qn_hub_path_base(path), "mmproj") && !importance;
}

/* Counts the listed parts of a model and their bytes. Parts are adjacent in the sorted list. */
static void measure(const qn_hub_files *files, qn_hub_model *model)
{
    char path[QN_HUB_PATH_SIZE];
    size_t index = model->first;
    strcpy(path, files->at[model->first].path);
    for (uint32_t i = 0; i < model->n_parts; i++) {
        if (model->n_parts > 1) {
            qn_gguf_split_rename(path, i, model->n_parts);
            if (!find(files, path, &index))
                continue;
        }
        model->n_listed++;
        model->bytes += files->at[index].size;
    }
}

/* Whether a file whose name has MTP in it is the block alone: much smaller than the file without the word that has its
 * type, or if there is none, than the largest. */
static bool is_small(const qn_hub_model *models, size_t count, const qn_hub_model *model)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        if (models[i].guess != QN_HUB_ORDINARY)
            continue;
        if (strcmp(models[i].type, model->type) == 0)
            return model->bytes && model->bytes < models[i].bytes / 2;
        largest = models[i].bytes > largest ? models[i].bytes : largest;
    }
    return model->bytes && model->bytes < largest / 2;
}

/* Whether a model drafts for another. Content decides what an MTP block is, but a small model that is meant to draft is
 * like any other, so that its name counts. */
static bool is_drafter(const qn_hub_files *files, const qn_hub_model *models, size_t count, const qn_hub_model *model)
{
    const qn_hub_file *file = &files->at[model->first];
    if (file->has_role && file->role == QN_FILE_DRAFTER)
        return true;
    switch (model->guess) {
    case QN_HUB_ORDINARY: return false;
    case QN_HUB_DRAFTER: return true;
    case QN_HUB_MTP: return !file->has_role;
    case QN_HUB_PERHAPS_MTP: return !file->has_role && count <= MAX_COMPARED && is_small(models, count, model);
    }
    return false;
}

qn_status qn_hub_models(const qn_hub_files *files, qn_hub_model **models, size_t *count)
{
    size_t capacity = 0;
    *models = NULL;
    *count = 0;
    for (size_t i = 0; i < files->count; i++) {
        const char *path = files->at[i].path;
        uint32_t no = 0, n_parts = 1;
        if (!is_model(&files->at[i]) || (qn_gguf_split_numbers(path, &no, &n_parts) && no != 0))
            continue;
        const qn_status status =
            qn_realloc_array(models, &capacity, *count + 1, sizeof **models, "models of a repository");
        if (status) {
            free(*models);
            *models = NULL;
            return status;
        }
        qn_hub_model *model = &(*models)[(*count)++];
        *model = (qn_hub_model){ .first = i, .n_parts = n_parts };
        (void)qn_hub_path_type(path, model->type);
        model->guess = qn_hub_guess_drafter(path);
        measure(files, model);
    }
    for (size_t i = 0; i < *count; i++)
        (*models)[i].is_drafter = is_drafter(files, *models, *count, &(*models)[i]);
    return QN_OK;
}

/* Leaves out drafters. Returns false, and leaves all, if there is nothing else. */
static bool leave_out_drafters(qn_hub_model *models, size_t *count)
{
    size_t n = 0;
    for (size_t i = 0; i < *count; i++)
        if (!models[i].is_drafter)
            models[n++] = models[i];
    if (n)
        *count = n;
    return n > 0;
}

/* ---- By file ---- */

/* Selects one file, or all parts of a split model. */
static qn_status take(const qn_hub_files *files, size_t index, qn_hub_selection *selection)
{
    char path[QN_HUB_PATH_SIZE];
    uint32_t no = 0, count = 1;
    strcpy(path, files->at[index].path);
    const bool split = qn_gguf_split_numbers(path, &no, &count) && count > 1;
    QN_TRY(qn_alloc(&selection->at, count, sizeof *selection->at, "files of a model"));
    for (uint32_t i = 0; i < count; i++) {
        if (split) {
            qn_gguf_split_rename(path, i, count);
            if (!find(files, path, &index))
                return qn_fail(QN_ERR_INVALID,
                               "'%.200s' is one of %" PRIu32
                               " files of a split model, and the repository lacks '%.200s'",
                               files->at[selection->count ? selection->at[0] : 0].path, count, path);
        }
        selection->at[selection->count++] = index;
        selection->bytes += files->at[index].size;
    }
    return QN_OK;
}

static qn_status take_named(const qn_hub_files *files, const qn_hub_name *name, qn_hub_selection *selection)
{
    size_t index = 0, n_same = 0;
    if (find(files, name->file, &index))
        return take(files, index, selection);
    for (size_t i = 0; i < files->count; i++)
        if (strcmp(qn_hub_path_base(files->at[i].path), name->file) == 0) {
            index = i;
            n_same++;
        }
    if (n_same == 1)
        return take(files, index, selection);
    if (n_same)
        return qn_fail(QN_ERR_INVALID, "%s: %zu of its files are named '%.200s'; give the path of one", name->repo,
                       n_same, name->file);
    return qn_fail(QN_ERR_INVALID, "%s: it has no file '%.200s'", name->repo, name->file);
}

/* ---- By type ---- */

/* How a model's type matches the wanted one. The closest match of any model wins. */
enum match { WHOLE, WHOLE_FORMAT, BEGINNING, BEGINNING_OF_FORMAT, WORDS };

static bool begins(const char *type, const char *wanted, bool whole)
{
    const size_t length = strlen(wanted);
    return strncasecmp(type, wanted, length) == 0 && (type[length] == '\0' || (!whole && type[length] == '_'));
}

static bool matches(const qn_hub_files *files, const qn_hub_model *model, const char *wanted, enum match match)
{
    switch (match) {
    case WHOLE:
    case BEGINNING: return begins(model->type, wanted, match == WHOLE);
    case WHOLE_FORMAT:
    case BEGINNING_OF_FORMAT: return begins(qn_hub_type_format(model->type), wanted, match == WHOLE_FORMAT);
    case WORDS: return qn_hub_path_has_words(files->at[model->first].path, wanted);
    }
    return false;
}

/* Prints "A, B, C and 4 more": the models that match a type, or all if `type` is NULL, as many as fit. */
static void enumerate(const qn_hub_files *files, const qn_hub_model *models, size_t count, const char *type,
                      enum match match, bool types, char *text, size_t size)
{
    qn_text_buffer to = qn_append_to(text, size);
    size_t n_left = 0;
    for (size_t i = 0; i < count; i++) {
        const char *word = types && *models[i].type ? models[i].type : files->at[models[i].first].path;
        if (type && !matches(files, &models[i], type, match))
            continue;
        if (n_left || to.length + strlen(word) + 32 > size)
            n_left++;
        else
            qn_append(&to, "%s%s", to.length ? ", " : "", word);
    }
    if (n_left)
        qn_append(&to, "%s%zu more", to.length ? " and " : "", n_left);
}

static qn_status take_type(const qn_hub_files *files, const qn_hub_name *name, const qn_hub_model *models, size_t count,
                           qn_hub_selection *selection)
{
    size_t n_found = 0, found = 0;
    char list[240];
    enum match match = WHOLE;
    for (;; match++) {
        for (size_t i = 0; i < count; i++)
            if (matches(files, &models[i], name->type, match)) {
                found = i;
                n_found++;
            }
        if (n_found || match == WORDS)
            break;
    }
    if (n_found == 1)
        return take(files, models[found].first, selection);
    enumerate(files, models, count, n_found ? name->type : NULL, match, !n_found, list, sizeof list);
    if (n_found)
        return qn_fail(QN_ERR_INVALID, "%s: %zu models match the type %s; name a file: %s", name->repo, n_found,
                       name->type, list);
    return qn_fail(QN_ERR_INVALID, "%s: no model of type %s; there is %s", name->repo, name->type,
                   count ? list : "no GGUF file");
}

/* ---- The preferred model ---- */

/* Most preferred first. */
enum rank { NATIVE, QUANTISED, HALF, FULL, UNREADABLE };

/* The format of a type as file names spell it: "Q4_K" for "Q4_K_M" and "UD-Q4_K_XL". NULL if quern cannot read it. */
static const qn_type_info *format_of(const char *type)
{
    char text[QN_HUB_TYPE_SIZE];
    strcpy(text, qn_hub_type_format(type));
    for (;;) {
        const qn_type_info *info = qn_type_find_name(text);
        char *piece = strrchr(text, '_');
        if (info || !piece)
            return info;
        *piece = '\0';
    }
}

static enum rank rank_of(const qn_hub_model *model)
{
    const qn_type_info *format = format_of(model->type);
    if (model->n_listed != model->n_parts)
        return UNREADABLE;
    if (!*model->type)
        return QUANTISED;
    switch (format ? (int)format->type : -1) {
    case QN_TYPE_Q1_0:
    case QN_TYPE_Q2_0:
    case QN_TYPE_PQ2_0:
    case QN_TYPE_PTQ1_0: return NATIVE;
    case QN_TYPE_F16:
    case QN_TYPE_BF16: return HALF;
    case QN_TYPE_F32: return FULL;
    case -1: return UNREADABLE;
    default: return QUANTISED;
    }
}

static void explain(const qn_hub_files *files, const qn_hub_model *best, size_t n_fitting, uint64_t memory,
                    qn_hub_selection *selection)
{
    static const char *const kinds[] = {
        [NATIVE] = "of 1-bit and ternary files, whose weights are as trained,",
        [QUANTISED] = "of quantised files",
        [HALF] = "of 16-bit files, as there is no quantised one,",
        [FULL] = "of 32-bit files, as there is no smaller one,",
        [UNREADABLE] = "",
    };
    if (memory == UINT64_MAX)
        return;
    snprintf(selection->why, sizeof selection->why,
             "%s, %.3g GB: %s the largest%s that fits in four fifths of the available memory, %.3g GB",
             qn_hub_path_base(files->at[best->first].path), (double)best->bytes * 1e-9, kinds[rank_of(best)],
             n_fitting > 1 ? "" : " and only one", (double)memory * 1e-9);
}

static qn_status take_best(const qn_hub_files *files, const qn_hub_name *name, const qn_hub_model *models, size_t count,
                           uint64_t memory, qn_hub_selection *selection)
{
    const qn_hub_model *best = NULL, *smallest = NULL;
    const uint64_t limit = memory / 5 * 4;
    size_t n_fitting = 0;
    char list[240];
    for (size_t i = 0; i < count; i++) {
        const enum rank rank = rank_of(&models[i]);
        if (rank == UNREADABLE)
            continue;
        if (!smallest || models[i].bytes < smallest->bytes)
            smallest = &models[i];
        if (models[i].bytes > limit || (best && rank > rank_of(best)))
            continue;
        n_fitting = best && rank == rank_of(best) ? n_fitting + 1 : 1;
        if (!best || rank < rank_of(best) || models[i].bytes > best->bytes)
            best = &models[i];
    }
    if (best) {
        explain(files, best, n_fitting, memory, selection);
        return take(files, best->first, selection);
    }
    if (smallest)
        return qn_fail(
            QN_ERR_INVALID,
            "%s: no file fits in four fifths of the available memory, %.3g GB; the smallest is %s with %.3g GB: name "
            "it after ':' to have it all the same",
            name->repo, (double)memory * 1e-9, qn_hub_path_base(files->at[smallest->first].path),
            (double)smallest->bytes * 1e-9);
    for (size_t i = 0; i < count; i++)
        if (models[i].n_listed != models[i].n_parts)
            return take(files, models[i].first, selection); /* fails and names the missing part */
    enumerate(files, models, count, NULL, WORDS, false, list, sizeof list);
    return qn_fail(QN_ERR_INVALID,
                   count ? "%s: quern reads the weight type of none of its GGUF files: %s"
                         : "%s: it has no GGUF file%s",
                   name->repo, list);
}

qn_status qn_hub_select(const qn_hub_files *files, const qn_hub_name *name, uint64_t memory,
                        qn_hub_selection *selection)
{
    qn_hub_model *models;
    size_t count;
    *selection = (qn_hub_selection){ 0 };
    if (*name->file)
        return take_named(files, name, selection);
    QN_TRY(qn_hub_models(files, &models, &count));
    const bool named = qn_hub_guess_drafter(name->type) != QN_HUB_ORDINARY;
    const bool has_models = named || leave_out_drafters(models, &count);
    const qn_status status = *name->type ? take_type(files, name, models, count, selection)
                                         : take_best(files, name, models, count, memory, selection);
    selection->is_drafter = !status && !has_models;
    free(models);
    return status;
}

/* ---- Drafters ---- */

/* A part of a file's name. */
struct words {
    const char *at, *end;
};

/* The name of a model up to its type, without the word for a kind of drafter at the beginning: "mtp-". */
static struct words words_of(const qn_hub_files *files, const qn_hub_model *model)
{
    const char *name = qn_hub_path_base(files->at[model->first].path);
    const char *type = *model->type ? qn_strcasestr(name, model->type) : NULL;
    struct words words = { name, type ? type : name + strlen(name) };
    char first[16];
    const size_t n = strcspn(name, "-_.");
    snprintf(first, sizeof first, "%.*s", n < sizeof first ? (int)n : 0, name);
    if (n < (size_t)(words.end - name) && qn_hub_guess_drafter(first) != QN_HUB_ORDINARY)
        words.at += n;
    return words;
}

static bool next_word(struct words *words, const char **word, size_t *length)
{
    while (words->at < words->end && strchr("-_.", *words->at))
        words->at++;
    *word = words->at;
    while (words->at < words->end && !strchr("-_.", *words->at))
        words->at++;
    *length = (size_t)(words->at - *word);
    return *length > 0;
}

/* The number of words at the beginning of two names that are the same, ignoring case. */
static size_t common_words(struct words a, struct words b)
{
    const char *left, *right;
    size_t n = 0, m, count = 0;
    while (next_word(&a, &left, &n) && next_word(&b, &right, &m) && n == m && strncasecmp(left, right, n) == 0)
        count++;
    return count;
}

/* Whether drafter a fits a model better than b: its name has more of the model's words, or it is of a better type, or
 * larger. */
static bool fits_better(const qn_hub_files *files, const qn_hub_model *model, const qn_hub_model *a,
                        const qn_hub_model *b)
{
    const struct words name = words_of(files, model);
    const size_t m = common_words(name, words_of(files, a)), n = common_words(name, words_of(files, b));
    if (m != n)
        return m > n;
    return rank_of(a) != rank_of(b) ? rank_of(a) < rank_of(b) : a->bytes > b->bytes;
}

/* How a drafter is used. An MTP block may also be joined to the model's file. */
static const char *use_of(const qn_hub_model *drafter)
{
    return drafter->guess == QN_HUB_DRAFTER ? "--draft-model FILE" : "--draft-model FILE or quern graft";
}

static void offer(const qn_hub_files *files, const qn_hub_name *name, const qn_hub_model *models, size_t count,
                  const qn_hub_model *model, char *line, size_t size)
{
    const qn_hub_model *best = NULL;
    const bool is_main = strcmp(name->revision, "main") == 0;
    for (size_t i = 0; i < count; i++)
        if (models[i].is_drafter && models[i].n_listed == models[i].n_parts &&
            (!best || fits_better(files, model, &models[i], best)))
            best = &models[i];
    if (!best)
        return;
    const char *path = files->at[best->first].path;
    snprintf(line, size, "this repository has a drafter, %.3g GB: pull it with quern pull %s%s%s:%s; use it with %s",
             (double)best->bytes * 1e-9, name->repo, is_main ? "" : "@", is_main ? "" : name->revision, path,
             use_of(best));
}

qn_status qn_hub_offer_drafter(const qn_hub_files *files, const qn_hub_name *name, const qn_hub_selection *selection,
                               char *line, size_t size)
{
    qn_hub_model *models;
    size_t count;
    line[0] = '\0';
    QN_TRY(qn_hub_models(files, &models, &count));
    for (size_t i = 0; i < count && selection->count; i++) {
        const char *path = files->at[models[i].first].path;
        if (models[i].first != selection->at[0])
            continue;
        if (models[i].is_drafter)
            snprintf(line, size, "%s is a drafter, which runs next to a model: use it with %s", qn_hub_path_base(path),
                     use_of(&models[i]));
        else
            offer(files, name, models, count, &models[i], line, size);
    }
    free(models);
    return QN_OK;
}

void qn_hub_selection_free(qn_hub_selection *selection)
{
    qn_free(selection->at);
    *selection = (qn_hub_selection){ 0 };
}
