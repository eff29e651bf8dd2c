/* Parts of the node that the world of front's HTTP tests has not: what cannot be reached there, and what finds nothing. */
#include <stddef.h>
#include <stdlib.h>

/* Weak: a test may have them after all. */
#define ABSENT(name) \
    void name(void); \
    __attribute__((weak)) void name(void) { abort(); }
#define EMPTY(name)   \
    void *name(void); \
    __attribute__((weak)) void *name(void) { return NULL; }

/* clang-format off */
ABSENT(build_blob_name)
ABSENT(build_cancel)
ABSENT(build_make)
ABSENT(build_start)
ABSENT(changes_add)
ABSENT(generation_make)
ABSENT(generation_newest)
ABSENT(generation_undo)
ABSENT(generations_each)
ABSENT(image_cancel)
ABSENT(image_import)
ABSENT(stack_id_valid)
ABSENT(state_crowded)
ABSENT(state_hold)
ABSENT(state_release)
ABSENT(state_stock_failure)
ABSENT(stock_http_status)
ABSENT(stockc_ask)
ABSENT(stockc_ask_for)
ABSENT(stockc_cancel)
ABSENT(stockc_list)
ABSENT(stockc_request)
ABSENT(tmpl_config_done)
ABSENT(tmpl_config_json)
ABSENT(tmpl_config_parse)
ABSENT(tmpl_config_text)
ABSENT(tmpl_set)
ABSENT(tmpl_tag)
ABSENT(transaction_commit)
ABSENT(transaction_discard)
ABSENT(transaction_start)
ABSENT(transactions_each)
ABSENT(volume_by_id)
ABSENT(volume_create)
ABSENT(volume_delete)
ABSENT(volume_measure)
ABSENT(volume_resize)
ABSENT(volume_turn)
ABSENT(volume_turn_end)
ABSENT(volume_users)

EMPTY(build_find)
EMPTY(build_id_ours)
EMPTY(build_template_known)
EMPTY(config_given)
EMPTY(generation_find)
EMPTY(store_disk_full)
EMPTY(transaction_find)
EMPTY(volume_find)
EMPTY(volume_name_valid)
EMPTY(volumes_each)
