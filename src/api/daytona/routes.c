/* routes.c - which operation of Daytona's each function serves. */
#include "api/daytona/daytona.h"
#include "api/volumes.h"
#include "base/cleanup.h"

enum { READ = 0, WRITE = API_CHANGES, CONTENTS = API_CONTENTS };

#define ROOT    "/daytona"
#define TOOLBOX "/daytona/toolbox/{id}"

/* Literal segments stand before parameters: the first route that fits wins. */
static const struct api_route routes[] = {
    {"GET", ROOT "/sandbox", daytona_list, SCOPE_SANDBOXES, READ},
    {"POST", ROOT "/sandbox", daytona_create, SCOPE_SANDBOXES, WRITE},
    {"GET", ROOT "/sandbox/paginated", daytona_list_paginated, SCOPE_SANDBOXES, READ},
    {"GET", ROOT "/sandbox/{id}", daytona_get, SCOPE_SANDBOXES, READ},
    {"DELETE", ROOT "/sandbox/{id}", daytona_kill, SCOPE_SANDBOXES, WRITE},
    {"POST", ROOT "/sandbox/{id}/start", daytona_start, SCOPE_SANDBOXES, WRITE},
    {"POST", ROOT "/sandbox/{id}/stop", daytona_stop, SCOPE_SANDBOXES, WRITE},
    {"POST", ROOT "/sandbox/{id}/pause", daytona_pause, SCOPE_SANDBOXES, WRITE},
    {"POST", ROOT "/sandbox/{id}/last-activity", daytona_touch, SCOPE_SANDBOXES, WRITE},
    {"POST", ROOT "/sandbox/{id}/autostop/{interval}", daytona_autostop, SCOPE_SANDBOXES, WRITE},
    {"POST", ROOT "/sandbox/{id}/public/{isPublic}", daytona_public, SCOPE_SANDBOXES, WRITE},
    {"GET", ROOT "/sandbox/{id}/toolbox-proxy-url", daytona_toolbox_url, SCOPE_SANDBOXES, READ},
    {"GET", ROOT "/sandbox/{id}/ports/{port}/preview-url", daytona_preview, SCOPE_SANDBOXES, WRITE},
    {"GET", ROOT "/sandbox/{id}/ports/{port}/signed-preview-url", daytona_preview_signed, SCOPE_SANDBOXES, WRITE},
    {"GET", ROOT "/volumes", daytona_volumes, SCOPE_SANDBOXES, READ},
    {"POST", ROOT "/volumes", daytona_volume_create, SCOPE_SANDBOXES, WRITE},
    {"GET", ROOT "/volumes/by-name/{name}", daytona_volume_by_name, SCOPE_SANDBOXES, READ},
    {"GET", ROOT "/volumes/{id}", daytona_volume, SCOPE_SANDBOXES, READ},
    {"DELETE", ROOT "/volumes/{id}", api_volume_remove, SCOPE_SANDBOXES, WRITE},
    {"GET", ROOT "/snapshots", daytona_snapshots, SCOPE_SANDBOXES, READ},
    {"GET", ROOT "/snapshots/{id}", daytona_snapshot, SCOPE_SANDBOXES, READ},
    {"GET", ROOT "/config", daytona_config, 0, API_OPEN},
    {"GET", ROOT "/health", daytona_health, 0, API_OPEN},
    {"POST", TOOLBOX "/process/execute", daytona_execute, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/process/code-run", daytona_code_run, SCOPE_SANDBOXES, WRITE},
    {"GET", TOOLBOX "/process/session", daytona_sessions, SCOPE_SANDBOXES, CONTENTS},
    {"POST", TOOLBOX "/process/session", daytona_session_make, SCOPE_SANDBOXES, WRITE},
    {"GET", TOOLBOX "/process/session/{sid}", daytona_session, SCOPE_SANDBOXES, CONTENTS},
    {"DELETE", TOOLBOX "/process/session/{sid}", daytona_session_remove, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/process/session/{sid}/exec", daytona_session_exec, SCOPE_SANDBOXES, WRITE},
    {"GET", TOOLBOX "/process/session/{sid}/command/{cid}", daytona_command, SCOPE_SANDBOXES, CONTENTS},
    {"GET", TOOLBOX "/process/session/{sid}/command/{cid}/logs", daytona_command_logs, SCOPE_SANDBOXES, CONTENTS},
    {"POST", TOOLBOX "/process/session/{sid}/command/{cid}/input", daytona_command_input, SCOPE_SANDBOXES, WRITE},
    {"GET", TOOLBOX "/files", daytona_files, SCOPE_SANDBOXES, CONTENTS},
    {"DELETE", TOOLBOX "/files", daytona_file_remove, SCOPE_SANDBOXES, WRITE},
    {"GET", TOOLBOX "/files/info", daytona_file_info, SCOPE_SANDBOXES, CONTENTS},
    {"GET", TOOLBOX "/files/download", daytona_file_download, SCOPE_SANDBOXES, CONTENTS},
    {"POST", TOOLBOX "/files/bulk-upload", daytona_upload, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/files/bulk-download", daytona_download, SCOPE_SANDBOXES, CONTENTS},
    {"POST", TOOLBOX "/files/folder", daytona_folder, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/files/move", daytona_file_move, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/files/permissions", daytona_permissions, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/files/replace", daytona_replace, SCOPE_SANDBOXES, WRITE},
    {"GET", TOOLBOX "/files/find", daytona_find, SCOPE_SANDBOXES, CONTENTS},
    {"GET", TOOLBOX "/files/search", daytona_search, SCOPE_SANDBOXES, CONTENTS},
    {"GET", TOOLBOX "/user-home-dir", daytona_work_dir, SCOPE_SANDBOXES, CONTENTS},
    {"GET", TOOLBOX "/work-dir", daytona_work_dir, SCOPE_SANDBOXES, CONTENTS},
    {"GET", TOOLBOX "/version", daytona_version, SCOPE_SANDBOXES, READ},
    {"GET", TOOLBOX "/git/status", daytona_git_status, SCOPE_SANDBOXES, CONTENTS},
    {"GET", TOOLBOX "/git/history", daytona_git_history, SCOPE_SANDBOXES, CONTENTS},
    {"GET", TOOLBOX "/git/branches", daytona_git_branches, SCOPE_SANDBOXES, CONTENTS},
    {"POST", TOOLBOX "/git/branches", daytona_git_do, SCOPE_SANDBOXES, WRITE},
    {"DELETE", TOOLBOX "/git/branches", daytona_git_do, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/git/add", daytona_git_do, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/git/commit", daytona_git_do, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/git/clone", daytona_git_do, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/git/push", daytona_git_do, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/git/pull", daytona_git_do, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/git/checkout", daytona_git_do, SCOPE_SANDBOXES, WRITE},
    {"POST", TOOLBOX "/git/init", daytona_git_do, SCOPE_SANDBOXES, WRITE},
};

const struct api_dialect daytona_dialect = {.routes = routes, .nroutes = ARRAY_LEN(routes)};
