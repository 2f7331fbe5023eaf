"""The privacy core: constrain, noise, account, and remember what was spent.

Order of use in one silo: ``PrivacySpec`` says what is promised and ``dp.accounting.charge`` what it
costs. ``Ledger.reserve_training`` charges a local training and returns the ``TrainingReceipt`` that
its noisy steps are taken from (``dp.steps.sgd``). ``Ledger.reserve`` charges a release and returns
a ``Receipt``, against which ``NoiseShare`` turns a delta or a ``UnitSum`` into ring elements. The
coordinator decodes the sum with ``Grid.decode`` and ``MetricsBlock.decode``.

Arrays and bytes in, arrays and bytes out; only the ledger touches a disk, and only
``dp.steps.grads`` imports a learning framework.
"""
