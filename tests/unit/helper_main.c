/* main() of the unit tests that have none of their own. */
#include "helper_test.h"

int main(void)
{
    return run_all_tests();
}
