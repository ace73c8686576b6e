/* python.exe for tests of pyquern: runs the interpreter of the python311.dll next to it. */
#include <windows.h>

typedef int main_function(int argc, wchar_t **argv);

int wmain(int argc, wchar_t **argv);

int wmain(int argc, wchar_t **argv)
{
    const HMODULE library = LoadLibraryW(L"python311.dll");
    main_function *run = library ? (main_function *)(void (*)(void))GetProcAddress(library, "Py_Main") : NULL;
    return run ? run(argc, argv) : 127;
}
