/* quern rm: removes a model from the hub's cache. */
#include "cli/cli.h"

#include "hub/hub.h"

int qn_cli_rm(qn_args *args)
{
    qn_hub_name name;
    qn_hub_removed removed;
    char size[32];
    if (qn_hub_name_parse(args->operands[0], &name)) {
        qn_cli_error("%s", qn_error_text());
        return QN_EXIT_USAGE;
    }
    if (qn_hub_remove(args->operands[0], &removed))
        return qn_cli_fail();
    printf("%zu file%s removed, %s\n", removed.n_files, removed.n_files == 1 ? "" : "s",
           qn_print_size(size, removed.bytes));
    if (removed.shared)
        qn_cli_error("note: %s are in huggingface_hub's store for several repositories; hf cache prune frees them",
                     qn_print_size(size, removed.shared));
    return QN_EXIT_DONE;
}
