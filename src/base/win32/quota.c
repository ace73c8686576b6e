/* Limits of processor time: a job's hard cap, in hundredths of a percent of all processors. */
#include "base/cpu.h"

#include <windows.h>

double qn_cpu_quota_in(const char *root)
{
    JOBOBJECT_CPU_RATE_CONTROL_INFORMATION rate = { 0 };
    const DWORD capped = JOB_OBJECT_CPU_RATE_CONTROL_ENABLE | JOB_OBJECT_CPU_RATE_CONTROL_HARD_CAP;
    if (*root || !QueryInformationJobObject(NULL, JobObjectCpuRateControlInformation, &rate, sizeof rate, NULL) ||
        (rate.ControlFlags & capped) != capped)
        return 0;
    return rate.CpuRate / 10000.0 * GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
}

double qn_cpu_quota(void)
{
    return qn_cpu_quota_in("");
}
