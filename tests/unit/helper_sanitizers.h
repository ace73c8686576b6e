/* QN_TEST_SANITIZED: 1 in a program with the address or the thread sanitizer, else 0. */
#ifndef QN_TESTS_HELPER_SANITIZERS_H
#define QN_TESTS_HELPER_SANITIZERS_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QN_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QN_TEST_SANITIZED 1
#endif
#endif
#ifndef QN_TEST_SANITIZED
#define QN_TEST_SANITIZED 0
#endif

#endif
