/* What Tab completes in quern chat: names of commands, of files, and levels of thinking. */
#include "cli/chat.h"

#include "base/append.h"
#include "base/file.h"
#include "base/printable.h"
#include "chat/adapt.h"

#include <limits.h>
#include <string.h>

static void add_if(const char *word, const char *typed, size_t n_typed, const char *after, qn_completions *out)
{
    if (strncmp(word, typed, n_typed) == 0)
        qn_completions_add(out, word, strlen(word), after);
}

static void complete_command(const char *typed, size_t n, qn_completions *out)
{
    size_t n_commands;
    const qn_chat_command_info *commands = qn_chat_commands(&n_commands);
    for (size_t i = 0; i < n_commands; i++)
        add_if(commands[i].name, typed, n, *commands[i].arguments ? " " : "", out);
}

static void complete_level(const char *typed, size_t n, qn_completions *out)
{
    add_if("on", typed, n, "", out);
    add_if("off", typed, n, "", out);
    for (size_t i = 0; i < QN_EFFORT_LEVELS; i++)
        add_if(qn_effort_levels[i], typed, n, "", out);
}

/* Whether a name can be offered: names that would falsify the line are left out. */
static bool is_printable(const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0, n; i < length; i += n) {
        n = qn_printable(name + i, length - i);
        if (!n)
            return false;
    }
    return true;
}

static bool is_folder(const char *folder, const char *name)
{
    char path[PATH_MAX];
    qn_file_info info;
    return qn_print(path, sizeof path, "%s%s", folder, name) && qn_file_describe(path, &info) &&
           info.kind == QN_FILE_FOLDER;
}

/* Offers the files whose names begin with `typed`; hidden ones only after a dot. */
static void complete_file(const char *folder, const char *typed, size_t n, qn_completions *out)
{
    qn_folder *entries = qn_folder_open(*folder ? folder : ".");
    if (!entries)
        return;
    for (const char *name; (name = qn_folder_next(entries)) && !out->is_cut;) {
        const bool is_hidden = *name == '.' && (n == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0);
        if (!is_hidden && strncmp(name, typed, n) == 0 && is_printable(name))
            qn_completions_add(out, name, strlen(name), is_folder(folder, name) ? "/" : "");
    }
    qn_folder_close(entries);
}

static void complete_path(const char *text, size_t from, size_t length, qn_completions *out)
{
    char typed[PATH_MAX], folder[PATH_MAX];
    size_t begin = length;
    while (begin > from && !qn_file_is_separator(text[begin - 1]))
        begin--;
    out->from = begin;
    if (qn_print(typed, sizeof typed, "%.*s", (int)(begin - from), text + from) && qn_chat_path(typed, folder))
        complete_file(folder, text + begin, length - begin, out);
}

void qn_chat_complete(void *user, const char *text, size_t length, qn_completions *out)
{
    (void)user;
    const char *space = memchr(text, ' ', length);
    if (length < 1 || *text != '/' || (length > 1 && text[1] == '/') || memchr(text, '\n', length))
        return;
    if (!space) {
        complete_command(text, length, out);
        return;
    }
    size_t n_commands, from = (size_t)(space - text);
    const size_t n_name = from;
    const qn_chat_command_info *commands = qn_chat_commands(&n_commands);
    while (from < length && text[from] == ' ')
        from++;
    for (size_t i = 0; i < n_commands; i++) {
        if (strlen(commands[i].name) != n_name || strncmp(commands[i].name, text, n_name) != 0)
            continue;
        out->from = from;
        if (commands[i].takes == QN_CHAT_TAKES_FILE)
            complete_path(text, from, length, out);
        else if (commands[i].takes == QN_CHAT_TAKES_LEVEL)
            complete_level(text + from, length - from, out);
    }
}
