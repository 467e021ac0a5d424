# From the output of gotestsum: which tests failed, and what each of them printed, without the logs of its processes.
/^=== Failed$/ { summary = 1; next }
!summary { next }
/^=== FAIL: / { print; said = 0; inside = 1; next }
/^(===|DONE) / { inside = 0; next }
/^panic:|DATA RACE|^fatal error:/ { print; said = 1; left = 30; inside = 1; next }
inside && /_test\.go:[0-9]+: / { said = !/remains_test\.go|the cluster used/; left = 15 }
inside && said && left > 0 { print; left-- }
