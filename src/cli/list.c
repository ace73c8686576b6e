/* quern list: the models in the hub's cache. */
#include "cli/cli.h"

#include "base/printable.h"
#include "hub/hub.h"

#include <string.h>

static bool print_entry(void *user, const qn_hub_entry *entry)
{
    size_t *count = user;
    struct tm local;
    char size[32], type[64], used[32] = "";
    if (localtime_r(&entry->used, &local))
        strftime(used, sizeof used, "%Y-%m-%d %H:%M", &local);
    if (!(*count)++)
        printf("%-11s %-10s %-17s %s\n", "SIZE", "TYPE", "LAST USED", "MODEL");
    snprintf(type, sizeof type, "%s", *entry->type ? entry->type : "-");
    qn_mask(type);
    printf("%-11s %-10s %-17s ", qn_print_size(size, entry->bytes), type, used);
    qn_print_escaped(stdout, entry->repo, strlen(entry->repo));
    if (*entry->revision) {
        putchar('@');
        qn_print_escaped(stdout, entry->revision, strlen(entry->revision));
    }
    if (entry->file) {
        putchar(':');
        qn_print_escaped(stdout, entry->file, strlen(entry->file));
        if (entry->n_files > 1)
            printf(" (%u files)", (unsigned)entry->n_files);
        if (entry->is_drafter)
            fputs(" (drafter)", stdout);
        if (entry->outdated)
            fputs(" (not the newest)", stdout);
    } else {
        printf(" (%u incomplete download%s)", (unsigned)entry->n_files, entry->n_files == 1 ? "" : "s");
    }
    putchar('\n');
    return qn_out_flush();
}

int qn_cli_list(qn_args *args)
{
    size_t count = 0;
    (void)args;
    if (qn_hub_list(print_entry, &count))
        return qn_cli_fail();
    if (!count)
        qn_cli_error("note: the hub's cache has no models");
    return QN_EXIT_DONE;
}
