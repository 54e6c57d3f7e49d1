//! Real servers, replicas, poolers, a faulty network and separate processes, for Tenure's tests.
