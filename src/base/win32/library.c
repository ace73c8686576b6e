/* Libraries by LoadLibrary. The drivers' are in the system's folder, and are found nowhere else: a DLL of that name in
 * the current folder is not run. NVRTC is where PATH finds it, which CUDA's installer extends. */
#include "base/library.h"

#include "base/win32/wide.h"

#include <stdlib.h>
#include <string.h>
#include <windows.h>

const char qn_library_cuda[] = "nvcuda.dll", qn_library_vulkan[] = "vulkan-1.dll";
const char *const qn_library_nvrtc[] = { "nvrtc64_130_0.dll", "nvrtc64_120_0.dll", NULL };

/* Loads the first file of this name in a folder of PATH with an absolute name. */
static HMODULE load_from_path(const wchar_t *name)
{
    enum { PATH_ROOM = 32768 };
    HMODULE library = NULL;
    wchar_t *path = malloc(PATH_ROOM * sizeof *path), *folder = path, full[1024];
    const DWORD length = path ? GetEnvironmentVariableW(L"PATH", path, PATH_ROOM) : 0;
    while (length && length < PATH_ROOM && folder && !library) {
        wchar_t *end = wcschr(folder, L';');
        if (end)
            *end = L'\0';
        if (wcslen(folder) + wcslen(name) + 2 < sizeof full / sizeof *full && folder[0] && folder[1] == L':') {
            wcscpy(full, folder);
            wcscat(full, L"\\");
            wcscat(full, name);
            library = LoadLibraryExW(full, NULL, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32);
        }
        folder = end ? end + 1 : NULL;
    }
    free(path);
    return library;
}

void *qn_library_open(const char *name)
{
    wchar_t *wide = qn_wide_path(name);
    const bool is_path = strpbrk(name, "/\\") != NULL;
    const bool is_driver = !strcmp(name, qn_library_cuda) || !strcmp(name, qn_library_vulkan);
    HMODULE library = NULL;
    if (wide && is_path)
        library = LoadLibraryExW(wide, NULL, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32);
    else if (wide)
        library = LoadLibraryExW(wide, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
    if (wide && !is_path && !is_driver && !library)
        library = load_from_path(wide);
    if (wide && !library)
        SetLastError(ERROR_MOD_NOT_FOUND);
    free(wide);
    return library;
}

void *qn_library_find(void *library, const char *function)
{
    FARPROC found = GetProcAddress(library, function);
    void *address;
    memcpy(&address, &found, sizeof address);
    return address;
}

const char *qn_library_error(void)
{
    return qn_windows_error();
}
