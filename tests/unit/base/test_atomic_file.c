/* Files that replace others: who may read them, from the first byte on, under every umask; which symbolic links are
 * followed. */
#include "helper_assert.h"
#include "helper_folder.h"

#include "base/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned mode_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    return st.st_mode & 07777;
}

/* The mode of the temporary file before it has contents, and of the file. */
static void check(qn_file_access access, mode_t mask, int existing, unsigned expected)
{
    label("%s, umask %03o, replacing %o", access == QN_FILE_PRIVATE ? "private" : "shared", (unsigned)mask,
          (unsigned)existing);
    unlink(path);
    if (existing >= 0) {
        const int fd = open(path, O_WRONLY | O_CREAT, 0600);
        assert_true(fd >= 0);
        assert_int_equal(fchmod(fd, (mode_t)existing), 0);
        close(fd);
    }
    const mode_t before = umask(mask);
    qn_atomic_file file;
    assert_ok(qn_atomic_file_create(&file, path, access));
    umask(before);
    struct stat st;
    assert_int_equal(fstat(file.fd, &st), 0);
    assert_int_equal(st.st_mode & 07777, expected);
    assert_true(fcntl(file.fd, F_GETFD) & FD_CLOEXEC);
    assert_ok(qn_atomic_file_write(&file, "text", 4));
    assert_ok(qn_atomic_file_commit(&file));
    qn_atomic_file_free(&file);
    assert_int_equal(mode_of(path), expected);
}

TEST(test_modes)
{
    static const mode_t masks[] = { 0, 022, 077 };
    for (size_t i = 0; i < COUNT(masks); i++) {
        check(QN_FILE_PRIVATE, masks[i], -1, 0600);
        check(QN_FILE_PRIVATE, masks[i], 0644, 0600);
        check(QN_FILE_PRIVATE, masks[i], 0666, 0600);
        check(QN_FILE_SHARED, masks[i], -1, 0666 & ~masks[i]);
        check(QN_FILE_SHARED, masks[i], 0640, 0640);
        check(QN_FILE_SHARED, masks[i], 0600, 0600);
    }
}

/* ---- Files and links of other users, which only root can make ---- */

enum { OTHER = 12345, THIRD };

static char place[80], target[100], link_path[100], second[100];

static void write_target(uid_t owner, mode_t mode)
{
    unlink(target);
    const int fd = open(target, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "old", 3), 3);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
    assert_true(owner == geteuid() || chown(target, owner, (gid_t)-1) == 0);
}

/* Writes to a path; whether that is refused. */
static bool refuses(const char *name)
{
    qn_atomic_file file;
    qn_status status = qn_atomic_file_create(&file, name, QN_FILE_SHARED);
    if (status == QN_OK)
        status = qn_atomic_file_write(&file, "new text", 8);
    if (status == QN_OK)
        status = qn_atomic_file_commit(&file);
    else
        assert_int_equal(status, QN_ERR_IO);
    qn_atomic_file_free(&file);
    return status != QN_OK;
}

static bool is_new(void)
{
    struct stat st;
    assert_int_equal(stat(target, &st), 0);
    return st.st_size == 8;
}

static void make_link(const char *to, const char *name, uid_t owner)
{
    unlink(name);
    assert_int_equal(symlink(to, name), 0);
    assert_true(owner == geteuid() || lchown(name, owner, (gid_t)-1) == 0);
}

static int make_place(void)
{
    snprintf(place, sizeof place, "%s/shared", folder);
    snprintf(target, sizeof target, "%s/target", folder);
    snprintf(link_path, sizeof link_path, "%s/link", place);
    snprintf(second, sizeof second, "%s/second", folder);
    unlink(path);
    return mkdir(place, 0700);
}

static int remove_place(void)
{
    unlink(link_path);
    unlink(second);
    unlink(target);
    return rmdir(place);
}

TEST_WITH(test_links, make_place, remove_place)
{
    static const struct {
        mode_t folder;
        uid_t folder_owner, link_owner;
        bool refused;
    } cases[] = { { 01777, 0, 0, false },     { 01777, 0, OTHER, true },      { 01777, OTHER, THIRD, true },
                  { 0777, 0, OTHER, false },  { 01777, OTHER, OTHER, false }, { 01775, 0, OTHER, false },
                  { 01777, OTHER, 0, false }, { 0755, OTHER, OTHER, false } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (geteuid() != 0 && (cases[i].folder_owner || cases[i].link_owner))
            continue;
        const uid_t folder_owner = cases[i].folder_owner ? cases[i].folder_owner : geteuid(),
                    link_owner = cases[i].link_owner ? cases[i].link_owner : geteuid();
        assert_int_equal(chmod(place, cases[i].folder), 0);
        assert_true(folder_owner == geteuid() || chown(place, folder_owner, (gid_t)-1) == 0);
        static const char *const leads_to[] = { "../target", NULL };
        for (size_t l = 0; l < 2; l++) {
            label("case %zu, link %zu", i, l);
            write_target(geteuid(), 0600);
            make_link(leads_to[l] ? leads_to[l] : target, link_path, link_owner);
            assert_int_equal(refuses(link_path), cases[i].refused);
            assert_int_equal(is_new(), !cases[i].refused);
            make_link("shared/link", second, geteuid()); /* a link to the link */
            write_target(geteuid(), 0600);
            assert_int_equal(refuses(second), cases[i].refused);
            assert_int_equal(is_new(), !cases[i].refused);
            struct stat st;
            assert_true(lstat(link_path, &st) == 0 && S_ISLNK(st.st_mode));
            assert_true(lstat(second, &st) == 0 && S_ISLNK(st.st_mode));
        }
        if (geteuid() == 0)
            assert_int_equal(chown(place, 0, (gid_t)-1), 0);
    }
}

TEST_WITH(test_links_to_nothing, make_place, remove_place)
{
    unlink(target);
    make_link("../target", link_path, geteuid());
    assert_true(refuses(link_path));
    make_link("link", link_path, geteuid());
    assert_true(refuses(link_path));
    make_link(".", link_path, geteuid());
    assert_true(refuses(link_path));
}

/* The file that another user left is replaced, but its mode does not say who may read the new one. */
TEST_WITH(test_modes_of_others, make_place, remove_place)
{
    if (geteuid() != 0)
        skip();
    static const struct {
        mode_t mode;
        unsigned expected;
    } cases[] = { { 0666, 0640 }, { 0777, 0640 }, { 0600, 0600 }, { 0444, 0440 } };
    const mode_t before = umask(027);
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("mode %o", (unsigned)cases[i].mode);
        write_target(OTHER, cases[i].mode);
        assert_false(refuses(target));
        assert_true(is_new());
        assert_int_equal(mode_of(target), cases[i].expected);
    }
    umask(before);
}

/* ---- What killed processes leave ---- */

static size_t n_entries(void)
{
    size_t n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2;
}

static void write_once(const char *name)
{
    qn_atomic_file file;
    assert_ok(qn_atomic_file_create(&file, name, QN_FILE_SHARED));
    assert_ok(qn_atomic_file_write(&file, "text", 4));
    assert_ok(qn_atomic_file_commit(&file));
    qn_atomic_file_free(&file);
}

/* As any user a process in a user namespace may change its root, and has no /proc there: files without a name cannot
 * get one. */
static bool enter_without_proc(void)
{
    return (geteuid() == 0 || unshare(CLONE_NEWUSER) == 0) && chroot(folder) == 0 && chdir("/") == 0;
}

/* Begins a file in a child, which is killed. False if the child could not do without /proc. */
static bool begin_and_die(bool with_proc)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        qn_atomic_file file;
        if (!with_proc && !enter_without_proc())
            _exit(77);
        if (qn_atomic_file_create(&file, with_proc ? path : "/file", QN_FILE_SHARED) == QN_OK &&
            qn_atomic_file_write(&file, "much", 4) == QN_OK)
            kill(getpid(), SIGKILL);
        _exit(1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) || WEXITSTATUS(how) == 77);
    return WIFSIGNALED(how);
}

TEST_WITH(test_killed, make_place, remove_place)
{
    assert_true(begin_and_die(true));
    write_once(second);               /* under another name */
    assert_int_equal(n_entries(), 2); /* it and `place` */
    if (!begin_and_die(false))
        skip();
    assert_int_equal(n_entries(), 3);
    write_once(second);
    assert_int_equal(n_entries(), 2);
}

/* Files of living processes, and those that only look alike, stay. */
TEST_WITH(test_abandoned, make_place, remove_place)
{
    static const struct {
        const char *name;
        bool is_locked, stays;
    } cases[] = { { ".out.gguf.abc123.quern.part", false, false }, { ".x.000000.quern.part", false, false },
                  { ".out.gguf.abc123.quern.part", true, true },   { ".out.gguf.abc123.part", false, true },
                  { "out.gguf.abc123.quern.part", false, true },   { ".out.gguf.abc12.quern.part", false, true },
                  { ".out.gguf.ABC123.quern.part", false, true },  { ".abc123.quern.part", false, true },
                  { "..abc123.quern.part", false, true },          { ".out.gguf.abc123.quern.part2", false, true } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char name[128];
        label("%s, %slocked", cases[i].name, cases[i].is_locked ? "" : "not ");
        snprintf(name, sizeof name, "%s/%s", folder, cases[i].name);
        const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
        assert_true(fd >= 0);
        if (cases[i].is_locked)
            assert_int_equal(flock(fd, LOCK_EX), 0);
        write_once(second);
        assert_int_equal(access(name, F_OK) == 0, cases[i].stays);
        close(fd);
        unlink(name);
    }
    char link_name[128], directory[128];
    snprintf(link_name, sizeof link_name, "%s/.link.abc123.quern.part", folder);
    snprintf(directory, sizeof directory, "%s/.directory.abc123.quern.part", folder);
    assert_int_equal(symlink("target", link_name), 0);
    assert_int_equal(mkdir(directory, 0700), 0);
    write_once(target);
    struct stat st;
    assert_int_equal(lstat(link_name, &st), 0);
    unlink(link_name);
    assert_int_equal(rmdir(directory), 0);
    if (geteuid() == 0) {
        snprintf(link_name, sizeof link_name, "%s/.other.abc123.quern.part", folder);
        const int fd = open(link_name, O_WRONLY | O_CREAT | O_EXCL, 0600);
        assert_int_equal(fchown(fd, OTHER, (gid_t)-1), 0);
        close(fd);
        write_once(target);
        assert_int_equal(unlink(link_name), 0);
    }
}

/* A file that is not committed is gone, named or not. */
TEST_WITH(test_discarded, make_place, remove_place)
{
    qn_atomic_file file;
    assert_ok(qn_atomic_file_create(&file, second, QN_FILE_SHARED));
    qn_atomic_file_free(&file);
    assert_int_equal(n_entries(), 1);
}

/* What commit could not rename is found before anything is written: a name that is too long, and another user's file in
 * a folder such as /tmp. */
TEST_WITH(test_found_at_the_start, make_place, remove_place)
{
    char name[400];
    qn_atomic_file file;
    snprintf(name, sizeof name, "%s/%0256d", folder, 1);
    assert_int_equal(qn_atomic_file_create(&file, name, QN_FILE_SHARED), QN_ERR_IO);
    qn_atomic_file_free(&file);
    if (geteuid() != 0)
        skip();
    for (int owner = 0; owner < 3; owner++) {
        label("owner %d", owner);
        write_target(owner == 0 ? 0 : owner == 1 ? OTHER : THIRD, 0644);
        assert_int_equal(chmod(folder, 01777), 0);
        assert_int_equal(seteuid(OTHER), 0);
        const qn_status status = qn_atomic_file_create(&file, target, QN_FILE_SHARED);
        const qn_status done = status ? status : qn_atomic_file_commit(&file);
        qn_atomic_file_free(&file);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(chmod(folder, 0700), 0);
        assert_int_equal(status, owner == 1 ? QN_OK : QN_ERR_IO);
        assert_int_equal(done, status);
    }
}

TEST_GROUP(make_folder, remove_folder)
