/* The program on a terminal: a pseudo-terminal on which this test types and reads, as a user does. What arrived in the
 * model is seen in the session file that chat --save leaves. */
#include "helper_create.h"

#include "base/append.h"
#include "quern/quern.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define ANSWER "Hé 世🙂!"
#define MODEL QN_SOURCE_DIR "/tests/golden/parrot.gguf"

/* A slow machine under a sanitizer takes seconds to start the program. */
enum { SECONDS = 60 };

struct terminal {
    int fd;
    pid_t pid;
    char screen[1 << 16]; /* all that was printed */
    size_t length;
    size_t seen; /* expect() has searched up to here */
};

static struct terminal terminal; /* of the current test */

static char folder[] = "/tmp/quern-terminal.XXXXXX";
static char program[4096];
static char session_path[64];

/* Starts `quern ARGUMENTS...` (NULL-terminated) with these variables instead of the locale's (NULL-terminated
 * pairs). */
static void start(const char *const *environment, const char *const *arguments)
{
    const struct winsize size = { .ws_row = 40, .ws_col = 100 };
    terminal = (struct terminal){ .fd = -1 };
    terminal.pid = forkpty(&terminal.fd, NULL, NULL, &size);
    assert_true(terminal.pid >= 0);
    if (terminal.pid == 0) {
        char *argv[32] = { program };
        unsetenv("LANG");
        unsetenv("LC_ALL");
        unsetenv("LC_CTYPE");
        setenv("TERM", "xterm", 1);
        setenv("QN_DEVICE", "cpu", 1);
        for (size_t i = 0; environment && environment[i]; i += 2)
            setenv(environment[i], environment[i + 1], 1);
        for (size_t i = 0; arguments[i]; i++)
            argv[i + 1] = strdup(arguments[i]);
        execv(program, argv);
        _exit(127);
    }
}

/* Reads what is there, for at most `milliseconds`. False when there is nothing more to come. */
static bool read_screen(int milliseconds)
{
    struct pollfd p = { .fd = terminal.fd, .events = POLLIN };
    if (poll(&p, 1, milliseconds) <= 0)
        return true;
    assert_true(terminal.length + 1 < sizeof terminal.screen);
    const ssize_t n =
        read(terminal.fd, terminal.screen + terminal.length, sizeof terminal.screen - 1 - terminal.length);
    if (n <= 0)
        return false;
    terminal.length += (size_t)n;
    terminal.screen[terminal.length] = 0;
    return true;
}

/* Waits until `text` appears after what was found before. */
static void expect(const char *text)
{
    const time_t end = time(NULL) + SECONDS;
    for (;;) {
        const char *found = strstr(terminal.screen + terminal.seen, text);
        if (found) {
            terminal.seen = (size_t)(found - terminal.screen) + strlen(text);
            return;
        }
        if (!read_screen(100) || time(NULL) > end)
            break;
    }
    fail_msg("'%s' does not appear on the terminal; it shows:\n%s", text, terminal.screen + terminal.seen);
}

/* Waits until keys go to the line editor. It prints its prompt before it changes the terminal's mode; a Ctrl-D typed
 * between the two is lost with the mode in which it was typed. */
static void expect_editor(void)
{
    const time_t end = time(NULL) + SECONDS;
    struct termios modes;
    while (!tcgetattr(terminal.fd, &modes) && (modes.c_lflag & ICANON) && time(NULL) < end)
        read_screen(20);
    assert_false(modes.c_lflag & ICANON);
}

static void type_keys(const char *keys)
{
    assert_int_equal(write(terminal.fd, keys, strlen(keys)), strlen(keys));
}

/* The program's status as waitpid gives it; checks that the terminal is as it was. */
static int finish(void)
{
    const time_t end = time(NULL) + SECONDS;
    struct termios modes;
    int status = 0;
    pid_t ended = 0;
    while (!ended && time(NULL) < end) {
        read_screen(20);
        ended = waitpid(terminal.pid, &status, WNOHANG);
    }
    if (!ended) {
        kill(terminal.pid, SIGKILL);
        waitpid(terminal.pid, &status, 0);
        fail_msg("the program does not end; the terminal shows:\n%s", terminal.screen);
    }
    assert_int_equal(tcgetattr(terminal.fd, &modes), 0);
    assert_true((modes.c_lflag & (ICANON | ECHO | ISIG)) == (ICANON | ECHO | ISIG));
    /* Bracketed paste is off again. */
    const char *on = NULL, *off = NULL;
    for (const char *c = terminal.screen; (c = strstr(c, "\033[?2004")); c++)
        c[7] == 'h' ? (on = c) : (off = c);
    assert_true(!on || off > on);
    close(terminal.fd);
    return status;
}

/* The conversation that was saved, as text; special tokens by name. */
static char *saved_text(void)
{
    qn_session *session;
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    qn_model *model = create_model(MODEL, &CPU_MODEL(.n_threads = 1));
    assert_ok(qn_session_restore(model, session_path, NULL, &session));
    size_t used = 0;
    for (uint32_t i = 0; i < qn_session_length(session); i++) {
        const char *piece;
        size_t length;
        assert_ok(qn_token_piece(model, qn_session_tokens(session)[i], &piece, &length));
        assert_true(used + length < 1 << 16);
        memcpy(text + used, piece, length);
        used += length;
    }
    qn_session_free(session);
    qn_model_free(model);
    return text;
}

static void assert_saved(const char *part)
{
    char *text = saved_text();
    if (!strstr(text, part))
        fail_msg("'%s' did not arrive; the conversation is:\n%s", part, text);
    free(text);
}

/* A chat that saves what it heard; the prompt has appeared. */
static void start_chat(const char *const *environment)
{
    unlink(session_path);
    start(environment, (const char *const[]){ "chat", "-m", MODEL, "-t", "1", "--save", session_path, NULL });
    expect("> ");
}

static void leave(void)
{
    type_keys("/exit\r");
    const int status = finish();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- The tests ---- */

#define FOREIGN "schöner ß 日本"

/* Whatever the locale says: none, one that is not installed, C, or UTF-8. */
TEST(test_foreign_letters)
{
    static const char *const locales[][3] = { { NULL },
                                              { "LANG", "xx_XX.UTF-8", NULL },
                                              { "LC_ALL", "C", NULL },
                                              { "LC_ALL", "POSIX", NULL },
                                              { "LANG", "C.UTF-8", NULL } };
    for (size_t i = 0; i < COUNT(locales); i++) {
        start_chat(locales[i]);
        type_keys(FOREIGN "\r");
        expect(ANSWER);
        leave();
        assert_saved("user\n" FOREIGN "<|im_end|>");
    }
}

/* Without any UTF-8 locale lines come without editing, which is said. */
TEST(test_no_locale)
{
    static const char *const environment[] = { "LD_PRELOAD", QN_NO_UTF8_LOCALE, NULL };
    start_chat(environment);
    assert_contains(terminal.screen, "lines are read without editing");
    type_keys(FOREIGN "\r");
    expect(ANSWER);
    type_keys("\033[200~pasted\rlines\033[201~\r");
    expect(ANSWER);
    leave();
    assert_saved("user\n" FOREIGN "<|im_end|>");
    assert_saved("user\npasted\nlines<|im_end|>");
}

TEST(test_paste)
{
    start_chat(NULL);
    assert_contains(terminal.screen, "\033[?2004h");
    type_keys("before \033[200~one\r  two \302\2653\rfour\033[31m\r\r\033[201~ after\r");
    expect(ANSWER);
    type_keys("next\r");
    expect(ANSWER);
    leave();
    assert_saved("user\nbefore one\n  two \302\2653\nfour[31m after<|im_end|>");
    assert_saved("user\nnext<|im_end|>");
}

TEST(test_long_paste)
{
    static char keys[4000];
    unlink(session_path);
    start(NULL,
          (const char *const[]){ "chat", "-m", MODEL, "-q", "-t", "1", "-c", "8000", "--save", session_path, NULL });
    expect("> ");
    type_keys("\033[200~");
    for (int i = 0; i < 100; i++) {
        qn_text_buffer line = QN_APPEND_TO(keys);
        qn_append(&line, "line %d ü\r", i);
        assert_int_equal(write(terminal.fd, keys, line.length), line.length);
        read_screen(0);
    }
    type_keys("\033[201~\r");
    expect(ANSWER);
    leave();
    assert_saved("line 0 ü\nline 1 ü\n");
    assert_saved("\nline 98 ü\nline 99 ü<|im_end|>");
}

TEST(test_commands)
{
    start_chat(NULL);
    type_keys("/system\r");
    expect("There is no system turn.");
    type_keys("/system be brief\r");
    expect("The system's turn is set");
    type_keys("/system\r");
    expect("be brief");
    type_keys("//etc is a folder\r");
    expect(ANSWER);
    type_keys("/reset\r");
    expect("The conversation begins again.");
    type_keys("//usr is another\r");
    expect(ANSWER);
    leave();
    char *text = saved_text();
    assert_contains(text, "system\nbe brief<|im_end|>");
    assert_contains(text, "user\n/usr is another<|im_end|>");
    assert_null(strstr(text, "/etc"));
    free(text);
}

/* Ctrl-C at the prompt drops what was typed; in an answer it stops the answer; chat continues after both. */
TEST(test_interrupts)
{
    unlink(session_path);
    start(NULL, (const char *const[]){ "chat", "-m", MODEL, "-t", "1", "--save", session_path, NULL });
    expect("> ");
    type_keys("dropped\003");
    expect("\n");
    type_keys("kept\r");
    expect(ANSWER);
    leave();
    char *text = saved_text();
    assert_null(strstr(text, "dropped"));
    assert_contains(text, "user\nkept<|im_end|>");
    free(text);
    /* An answer without end: run with --ignore-eos. */
    start(NULL, (const char *const[]){ "run", "-m", MODEL, "-t", "1", "-q", "-p", "x", "--ignore-eos", "-c", "10000000",
                                       NULL });
    expect(ANSWER ANSWER);
    type_keys("\003");
    const int status = finish();
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGINT);
}

/* In an answer of chat: the demo model tells long stories. */
TEST(test_interrupted_answer)
{
    start(NULL, (const char *const[]){ "chat", "-m", QN_SOURCE_DIR "/models/quern-demo.gguf", "-t", "1", "--seed", "1",
                                       NULL });
    expect("> ");
    type_keys("Tell me a long story about a dog.\r");
    expect("\033[?2004l"); /* the message is read; what follows is the answer */
    for (int i = 0; i < 5; i++)
        expect(" ");
    type_keys("\003");
    expect("> ");
    type_keys("/reset\r");
    expect("The conversation begins again.");
    expect("> ");
    expect_editor();
    type_keys("\004"); /* Ctrl-D */
    const int status = finish();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int set_up(void)
{
    const char *folder_of_program = getenv("QN_BIN");
    snprintf(program, sizeof program, "%s/quern", folder_of_program ? folder_of_program : ".");
    if (access(program, X_OK) || !mkdtemp(folder))
        return -1;
    snprintf(session_path, sizeof session_path, "%s/session", folder);
    return 0;
}

static int tear_down(void)
{
    unlink(session_path);
    rmdir(folder);
    return 0;
}

TEST_GROUP(set_up, tear_down)
